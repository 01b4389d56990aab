"""A new instance type needs one table entry, and a new pair one file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peagle.data import data_folder
from peagle.request_validation import service_model
from tests.support import run_in_process
from tests.unit.catalog.catalog_files import GOOD, write_target

NEW_TYPE = "ml.g9x.2xlarge"
NEW_INSTANCE = f"""\
  - type: {NEW_TYPE}
    gpu: X100
    gpu_count: 1
    gpu_memory_mib: 98304
    gpu_architecture: sm_121
    vcpus: 8
    memory_gib: 64
    prices:
      - {{usd_per_hour: 3.21, region: us-east-1, date: 2026-11-22, source: announcement}}
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A catalogue with an instance type that is unknown to AWS SDKs, and a new pair."""
    table = (data_folder("model_catalog") / "instances.yaml").read_text(encoding="utf-8")
    (tmp_path / "instances.yaml").write_text(f"{table}{NEW_INSTANCE}", encoding="utf-8")
    write_target(tmp_path, GOOD)
    return tmp_path


def test_the_new_type_is_unknown_to_botocore() -> None:
    known = service_model("sagemaker").shape_for("ProductionVariantInstanceType").enum
    assert NEW_TYPE not in known


@pytest.mark.thorough
def test_a_plan_uses_the_new_pair_and_the_new_type(own: Path) -> None:
    done = run_in_process("--catalog", str(own), "plan", "chat-7b", "--instance-type", NEW_TYPE,
                          "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["pair"] == "acme/chat-7b+acme/chat-7b-p-eagle"
    assert plan["instance_type"] == NEW_TYPE
    assert plan["price_per_hour_usd"] == 3.21


@pytest.mark.thorough
def test_the_cheapest_type_that_fits_may_be_the_new_one(own: Path) -> None:
    table = own / "instances.yaml"
    table.write_text(table.read_text().replace("3.21", "0.01"))
    done = run_in_process("--catalog", str(own), "plan", "chat-7b", "--json")
    assert json.loads(done.stdout)["instance_type"] == NEW_TYPE


def test_check_accepts_both(own: Path) -> None:
    done = run_in_process("--catalog", str(own), "check", "chat-7b", "--instance-type", NEW_TYPE,
                          "--json")  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    levels = [finding["level"] for finding in json.loads(done.stdout)["findings"]]
    assert "error" not in levels


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["cloudformation", "terraform"])
def test_every_format_renders_them(own: Path, form: str, tmp_path: Path) -> None:
    output = tmp_path / "rendered"
    done = run_in_process("--catalog", str(own), "render", form, "chat-7b", "--instance-type",
                          NEW_TYPE, "--output", str(output))  # fmt: skip
    assert done.returncode == 0, done.stderr
    text = "".join(path.read_text() for path in output.rglob("*") if path.is_file())
    assert NEW_TYPE in text
    assert "acme/chat-7b" in text


@pytest.mark.thorough
def test_the_catalogue_with_them_has_no_problems(own: Path) -> None:
    done = run_in_process("catalog", "check", str(own), "--json")
    assert json.loads(done.stdout)["problems"] == []
