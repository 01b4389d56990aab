"""The CDK app synthesizes the plan; skips without Node.js, which CDK runs in."""

from __future__ import annotations

import json
import runpy
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cfnlint.api import ManualArgs, lint

from peagle.errors import Unsupported
from peagle.planning import Options, Plan, make_plan
from peagle.render import render
from tests.golden import assert_golden
from tests.iac.formats import from_requests, from_stack
from tests.iac.stack import stack_of
from tests.support import raises_code
from tests.unit.rendering.plans import CATALOG, limited, plan_of

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="CDK needs Node.js")
_ENDPOINT = "AWS::SageMaker::Endpoint"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where all apps write: Node.js, which starts once, reads the variable then."""
    folder = tmp_path_factory.mktemp("cdk-out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CDK_OUTDIR", str(folder))
        patch.setenv("JSII_SILENCE_WARNING_UNTESTED_NODE_VERSION", "1")
        yield folder


@pytest.fixture
def app(tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    """A folder from which the app imports its construct."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield App(tmp_path, out)
    sys.modules.pop("peagle_endpoint", None)


@dataclass(frozen=True)
class App:
    """A folder for a rendered app, and the one in which CDK writes."""

    folder: Path
    out: Path

    def synthesized(self, plan: Plan) -> dict[str, Any]:
        """The template that the plan's app makes, in this process."""
        for file in render("cdk", plan, CATALOG):
            (self.folder / file.path).write_bytes(file.content)
        runpy.run_path(str(self.folder / "app.py"))
        (template,) = self.out.glob("*.template.json")
        document: dict[str, Any] = json.loads(template.read_text())
        template.unlink()
        return document


@pytest.mark.parametrize("shape", ["uploaded", "scaled", "company", "one-prefix"])
def test_the_app_describes_the_endpoint_of_the_plan(shape: str, app: App) -> None:
    plan = plan_of(shape)
    template = app.synthesized(plan)
    assert from_stack(stack_of(template)) == from_requests(plan)
    problems = lint(json.dumps(template), config=ManualArgs(regions=[plan.region]))
    assert [f"{match.rule.id} {match.message}" for match in problems] == []


@pytest.mark.parametrize("name", ["limited", "rolled-out", "observed", "uploaded"])
def test_the_template_is_as_before(name: str, app: App) -> None:
    plan = limited() if name == "limited" else plan_of(name)
    template = app.synthesized(plan)
    assert_golden(f"synthesized/{name}.json", json.dumps(template, indent=1).encode() + b"\n")


def test_an_alarm_that_is_no_reason_to_return_undoes_no_update(app: App) -> None:
    options = Options(pair="tiny", rollout="all-at-once", observe=True)
    resources = app.synthesized(make_plan(options, CATALOG))["Resources"]
    (endpoint,) = [resource for resource in resources.values() if resource["Type"] == _ENDPOINT]
    config = endpoint["Properties"]["DeploymentConfig"]
    listed = json.dumps(config["AutoRollbackConfiguration"])
    assert "AcceptanceAlarm" in listed
    assert "LoadAlarm" not in listed
    assert any("LoadAlarm" in name for name in resources)


def test_two_prefixes_are_refused_with_the_name_of_a_format_that_can() -> None:
    with raises_code("format-unsupported", Unsupported) as raised:
        render("cdk", plan_of("two-prefixes"), CATALOG)
    assert "terraform" in raised.value.fix
