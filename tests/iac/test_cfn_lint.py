"""The template of every bundled pair is valid for the schema of CloudFormation."""

import functools
import json
from collections.abc import Callable
from typing import Any

import pytest

from peagle.planning import Plan
from peagle.render import render
from peagle.render.formats.cloudformation import template
from tests.unit.rendering.plans import ALL_PAIRS, CATALOG, limited, plan_for, plan_of, to_zero

SHAPES = ("own-folder", "two-instances", "scaled", "one-prefix", "streamed", "rolled-out")


def complaints(template: str, region: str) -> list[str]:
    """The errors and warnings of cfn-lint."""
    from cfnlint.config import ConfigMixIn  # the import takes a second
    from cfnlint.decode import decode_str
    from cfnlint.runner import run_template_by_data

    decoded, errors = decode_str(template)
    config = ConfigMixIn(regions=[region])
    problems = errors or list(run_template_by_data(decoded, config, rules()))
    return [f"{match.rule.id} {match.message}" for match in problems]


@functools.cache
def rules() -> Any:
    """cfn-lint's rules, which take as long to load as to apply; as for several files of one of its
    runs, they are the same for all templates."""
    from cfnlint.config import ConfigMixIn
    from cfnlint.runner import Runner

    return Runner(ConfigMixIn(regions=["us-east-1"])).rules


def complaints_about(plan: Plan) -> list[str]:
    """Those about the rendered file."""
    files = render("cloudformation", plan, CATALOG)
    (file,) = [file.content for file in files if file.path == "template.yaml"]
    return complaints(file.decode(), plan.region)


def shape_of(template: dict[str, Any]) -> str:
    """The template without its values, most of which CloudFormation does not check. Numbers are
    those of requests, which are checked for every pair."""

    def bare(value: object, name: str = "") -> object:
        if isinstance(value, dict):
            return {name: bare(item, name) for name, item in value.items()}
        if isinstance(value, list):
            return [bare(item) for item in value]
        return value if name == "InstanceType" else type(value).__name__

    return json.dumps(bare(template))


@pytest.mark.exhaustive
def test_every_bundled_pair_passes() -> None:
    """Of templates with the same shape, only the one with the longest texts is checked."""
    plans = sorted(map(plan_for, ALL_PAIRS), key=lambda plan: len(json.dumps(template(plan))))
    longest = {shape_of(template(plan)): plan for plan in plans}.values()
    assert 1 < len(longest) < len(plans)
    problems = {plan.pair: complaints(json.dumps(template(plan)), plan.region) for plan in longest}
    assert {pair: some for pair, some in problems.items() if some} == {}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_plan_passes(shape: str) -> None:
    assert complaints_about(plan_of(shape)) == []


@pytest.mark.parametrize("plan", [limited, to_zero])
def test_a_plan_with_an_end_and_one_that_scales_to_zero_pass(plan: Callable[[], Plan]) -> None:
    assert complaints_about(plan()) == []
