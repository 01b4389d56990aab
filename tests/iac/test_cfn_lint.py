"""The template of every bundled pair is valid for the schema of CloudFormation."""

from __future__ import annotations

import json

import pytest
import yaml

from peagle.planning import Plan
from peagle.render import render
from tests.unit.rendering.plans import ALL_PAIRS, CATALOG, plan_for, plan_of


def template_of(plan: Plan) -> str:
    """The CloudFormation template."""
    files = render("cloudformation", plan, CATALOG)
    (template,) = [file.content for file in files if file.path == "template.yaml"]
    return template.decode()


def complaints(plan: Plan) -> list[str]:
    """The errors and warnings of cfn-lint."""
    from cfnlint.api import ManualArgs, lint  # the import takes a second

    found = lint(template_of(plan), config=ManualArgs(regions=[plan.region]))
    return [f"{match.rule.id} {match.message}" for match in found]


def shape_of(plan: Plan) -> str:
    """The template without its texts, most of which CloudFormation does not check."""

    def bare(value: object, name: str = "") -> object:
        if isinstance(value, dict):
            return {name: bare(one, name) for name, one in value.items()}
        if isinstance(value, list):
            return [bare(one) for one in value]
        return "" if isinstance(value, str) and name != "InstanceType" else value

    return json.dumps(bare(yaml.safe_load(template_of(plan))))


def test_every_bundled_pair_passes() -> None:
    """Of templates with the same shape, only the one with the longest texts is checked."""
    plans = sorted(map(plan_for, ALL_PAIRS), key=lambda plan: len(template_of(plan)))
    longest = {shape_of(plan): plan for plan in plans}.values()

    assert 1 < len(longest) < len(plans)
    assert {plan.pair: found for plan in longest if (found := complaints(plan))} == {}


@pytest.mark.parametrize("shape", ["own-folder", "two-instances", "one-prefix", "streamed"])
def test_every_shape_of_plan_passes(shape: str) -> None:
    assert complaints(plan_of(shape)) == []


def test_the_check_finds_a_wrong_instance_type() -> None:
    wrong = plan_of("from-hub").model_copy(update={"instance_type": "ml.bogus.xlarge"})
    assert any(complaint.startswith("E30") for complaint in complaints(wrong))
