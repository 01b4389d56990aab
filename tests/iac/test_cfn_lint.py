"""CloudFormation's own schema takes the template of every bundled pair."""

from __future__ import annotations

import pytest
from cfnlint.api import ManualArgs, lint

from peagle.planning import Plan
from peagle.render import render
from tests.unit.rendering.plans import ALL_PAIRS, CATALOG, plan_for, plan_of


def complaints(plan: Plan) -> list[str]:
    """What cfn-lint has to say; warnings too."""
    (template,) = [
        file for file in render("cloudformation", plan, CATALOG) if file.path == "template.yaml"
    ]
    found = lint(template.content.decode(), config=ManualArgs(regions=[plan.region]))
    return [f"{match.rule.id} {match.message}" for match in found]


@pytest.mark.parametrize("pair", ALL_PAIRS)
def test_every_bundled_pair_passes(pair: str) -> None:
    assert complaints(plan_for(pair)) == []


@pytest.mark.parametrize("shape", ["own-folder", "two-instances", "one-prefix", "streamed"])
def test_every_shape_of_plan_passes(shape: str) -> None:
    assert complaints(plan_of(shape)) == []


def test_the_check_sees_what_is_wrong() -> None:
    wrong = plan_of("from-hub").model_copy(update={"instance_type": "ml.bogus.xlarge"})
    assert any(complaint.startswith("E30") for complaint in complaints(wrong))
