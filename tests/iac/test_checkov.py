"""checkov finds nothing in the templates; a check that is skipped has its reason there."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from peagle.data import data_folder
from peagle.planning import Options, Plan, make_plan
from peagle.render import render
from tests.unit.rendering.plans import CATALOG, limited, plan_of, to_zero

CHECKOV = Path(__file__).parents[2] / ".venv" / "checkov" / "bin" / "checkov"
SYNTHESIZED = Path(__file__).parents[1] / "golden" / "synthesized"
"""What CDK makes, by the tests of its app."""
PIPELINE = data_folder("infra/pipelines") / "codepipeline" / "pipeline.yaml"
COPIES = data_folder("infra/terraform") / "examples" / "copies" / "main.tf"
SHAPES = ("uploaded", "rolled-out", "observed", "company")
SKIPPED = {"CKV_AWS_370", "CKV_AWS_297", "CKV_AWS_18", "CKV_AWS_124"}
TRUST = {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}
ROLE = {"AssumeRolePolicyDocument": {"Version": "2012-10-17", "Statement": [TRUST]}}
WRONG = {"Resources": {"Role": {"Type": "AWS::IAM::Role", "Properties": ROLE}}}
"""A role that everybody may assume, which checkov finds."""


def everything() -> Plan:
    """A plan with every part of a template, and with copies."""
    options = Options(
        pair="gpt-oss-20b", instance_type="ml.p5.48xlarge", copies=8, rollout="rolling",
        observe=True, ttl=8 * 3600, tags={"team": "ml"},
    )  # fmt: skip
    return make_plan(options, CATALOG)


def write_templates(folder: Path) -> None:
    """CloudFormation of plans of every structure, what CDK synthesizes, the Terraform module, the
    pipeline, and a wrong template."""
    plans = {shape: plan_of(shape) for shape in SHAPES}
    plans |= {"limited": limited(), "to-zero": to_zero(), "everything": everything()}
    for name, plan in plans.items():
        template, *_ = render("cloudformation", plan, CATALOG)
        (folder / f"{name}.yaml").write_bytes(template.content)
    for file in render("terraform", plan_of("observed"), CATALOG):
        path = folder / "terraform" / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
    for path in (*SYNTHESIZED.glob("*.json"), PIPELINE, COPIES):
        shutil.copy(path, folder / f"{path.parent.name}-{path.name}")
    (folder / "wrong.json").write_text(json.dumps(WRONG))


def results(folder: Path, home: Path) -> dict[str, Any]:
    """What checkov reports, by framework. It reaches no network."""
    done = subprocess.run(
        [str(CHECKOV), "--directory", str(folder), "--framework", "cloudformation", "terraform",
         "--skip-download", "--output", "json"],
        env={"PATH": os.environ["PATH"], "HOME": str(home), "LOG_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )  # fmt: skip
    assert done.stdout.startswith("["), done.stderr[-2000:]
    return {report["check_type"]: report for report in json.loads(done.stdout)}


@pytest.mark.exhaustive
@pytest.mark.skipif(not CHECKOV.exists(), reason="checkov is not installed (make checkov)")
def test_checkov_finds_nothing_in_templates(tmp_path: Path) -> None:
    """One run over all files, since its start takes longer than its checks."""
    templates, home = tmp_path / "templates", tmp_path / "home"
    templates.mkdir()
    home.mkdir()
    write_templates(templates)
    reports = results(templates, home)
    failed: dict[str, list[str]] = {}
    skipped: list[dict[str, Any]] = []
    for framework, report in reports.items():
        assert report["summary"]["parsing_errors"] == 0, framework
        assert report["summary"]["passed"] > 10, framework
        for check in report["results"]["failed_checks"]:
            failed.setdefault(check["file_path"], []).append(
                f"{check['check_id']} {check['resource']}: {check['check_name']}"
            )
        skipped += report["results"]["skipped_checks"]
    wrong = failed.pop("/wrong.json")
    assert [report for report in wrong if report.startswith("CKV_AWS_60 ")] != []
    assert failed == {}
    assert {report["check_id"] for report in skipped} == SKIPPED
    assert all(len(report["check_result"]["suppress_comment"]) > 40 for report in skipped)
