"""Another speculation in a finished plan, and a plan without its floor."""

from __future__ import annotations

import json

import pytest

from peagle.catalog import load_catalog
from peagle.errors import UserError
from peagle.planning import Options, Plan, make_plan
from peagle.planning.speculation import with_speculation, without_floor
from peagle_serve.contract import SPECULATION
from tests.support import raises_code


@pytest.fixture(scope="module")
def plan() -> Plan:
    made = make_plan(Options(pair="tiny"), load_catalog())
    assert made.speculation
    floor = {"acceptance_floor": 1.4, "acceptance_floor_source": "break-even"}
    return made.model_copy(update={"speculation": made.speculation.model_copy(update=floor)})


def test_the_engine_gets_the_new_speculation(plan: Plan) -> None:
    assert plan.speculation
    found = with_speculation(plan, plan.speculation.model_copy(update={"k": 2}))
    config = found.environment[SPECULATION]
    assert json.loads(config)["num_speculative_tokens"] == 2
    assert (
        found.engine_arguments[found.engine_arguments.index("--speculative-config") + 1] == config
    )
    assert found.speculation
    assert found.speculation.acceptance_floor == 1.4


def test_without_speculation_the_plan_has_its_target_only(plan: Plan) -> None:
    alone = with_speculation(plan, None)
    assert (alone.speculation, alone.drafter, alone.pair) == (None, None, plan.target.id)
    assert SPECULATION not in alone.environment
    assert "--speculative-config" not in alone.engine_arguments
    assert without_floor(alone) == alone
    with raises_code("no-plan", UserError):
        with_speculation(alone, plan.speculation)


def test_a_plan_without_a_floor_has_no_origin_of_one(plan: Plan) -> None:
    found = without_floor(plan).speculation
    assert found
    assert (found.acceptance_floor, found.acceptance_floor_source) == (None, None)
