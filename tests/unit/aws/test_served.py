"""What an endpoint serves reads the same from its plan and from the account."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from peagle.aws import sagemaker
from peagle.aws.sagemaker import ResourceKind
from peagle.catalog import load_catalog
from peagle.deploy.discover import Live
from peagle.deploy.state import Served, served_by_plan
from peagle.options import Options
from peagle.planning import make_plan
from peagle.planning.plan import EXECUTION_ROLE, MODEL_BUCKET, Plan
from peagle.render.requests import requests, with_replaced
from tests.unit.aws.cloud import ROLE
from tests.unit.aws.world import World

CATALOG = load_catalog()
FILLED = {EXECUTION_ROLE: ROLE, MODEL_BUCKET: "mine"}
KINDS: tuple[ResourceKind, ...] = ("Model", "EndpointConfig", "Endpoint")


@cache
def made(pair: str, **options: Any) -> Plan:
    return make_plan(Options(pair=pair, **options), CATALOG)


def live(world: World, plan: Plan, **settings: Any) -> Served:
    """What the account says after the plan's three requests; ``settings`` change the first
    variant of the configuration."""
    for kind, request in zip(KINDS, requests(plan), strict=True):
        parameters = with_replaced(request.parameters, FILLED)
        if kind == "EndpointConfig":
            first, *others = parameters["ProductionVariants"]
            parameters["ProductionVariants"] = [first | settings, *others]
        sagemaker.create(world.aws, kind, str(parameters[f"{kind}Name"]), parameters, "1")
    endpoint = sagemaker.describe(world.aws, plan.name)
    assert endpoint is not None
    return Live(world.aws, endpoint).served(CATALOG.instances)


@pytest.mark.parametrize("pair", ["openai/gpt-oss-20b", "google/gemma-4-31b-it", "peagle/tiny"])
@pytest.mark.parametrize("options", [{}, {"speculation": False}, {"instance_count": 2}])
def test_a_plan_and_its_endpoint_are_equal(
    world: World, pair: str, options: dict[str, Any]
) -> None:
    plan = made(pair, **options)
    planned = served_by_plan(plan, FILLED)
    assert live(world, plan) == planned.model_copy(update={"price_date": None})


def test_the_instances_that_run_decide_count_and_price(world: World) -> None:
    plan = made("openai/gpt-oss-20b")
    planned = served_by_plan(plan, FILLED)
    found = live(world, plan, InitialInstanceCount=3)
    assert planned.usd_per_hour is not None
    assert found.instance_count == 3
    assert found.usd_per_hour == pytest.approx(3 * planned.usd_per_hour)
