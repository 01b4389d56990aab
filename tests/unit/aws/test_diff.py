"""What an update changes is shown in the user's terms, from plans or from what is in service."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from peagle.aws import sagemaker
from peagle.aws.sagemaker import ResourceKind
from peagle.catalog import load_catalog
from peagle.deploy.diff import compare_served
from peagle.deploy.discover import Live
from peagle.deploy.state import Served, served_by_plan
from peagle.options import Options
from peagle.planning import make_plan
from peagle.planning.plan import (
    EXECUTION_ROLE,
    MODEL_BUCKET,
    AlarmKind,
    Observe,
    Plan,
    RuntimeChoice,
)
from peagle.render.requests import requests, with_replaced
from tests.unit.aws.cloud import ROLE
from tests.unit.aws.plans import IMAGE, a_plan
from tests.unit.aws.test_updates import rolled_out
from tests.unit.aws.world import NAME, World

BEFORE = served_by_plan(a_plan())


def _changed(**fields: Any) -> list[str]:
    """The texts of the changes from ``BEFORE``."""
    return [change.text for change in compare_served(BEFORE, BEFORE.model_copy(update=fields))]


@pytest.mark.parametrize(("fields", "text"), [
    ({"k": 3}, "K 5 -> 3"),
    ({"k": 0}, "K 5 -> no speculation"),
    ({"max_model_len": 4096}, "context none -> 4096"),
    ({"instance_type": "ml.g6e.xlarge"}, "instance ml.g5.xlarge -> ml.g6e.xlarge"),
    ({"instance_count": 2}, "instances 1 -> 2"),
    ({"usd_per_hour": 2.5}, "price per hour $1.41 -> $2.50"),
    ({"usd_per_hour": None}, "price per hour $1.41 -> unknown"),
    ({"ami": "al2023"}, "host AMI none -> al2023"),
    ({"startup_timeout_seconds": 900}, "start-up timeout 600 s -> 900 s"),
    ({"image": "other/vllm:1"}, f"image {IMAGE} -> other/vllm:1"),
    ({"settings": BEFORE.settings | {"kv-cache-dtype": "fp8"}}, "--kv-cache-dtype default -> fp8"),
    ({"settings": BEFORE.settings | {"enforce-eager": None}}, "--enforce-eager default -> set"),
    ({"variables": {"A": "1"}}, "A default -> 1"),
    ({"variables": {"HF_TOKEN": "hf_1"}}, "HF_TOKEN default -> (hidden)"),
    ({"weights": {"model": "s3://bucket/other/"}},
     "weights in /opt/ml/model default -> s3://bucket/other/"),
])  # fmt: skip
def test_every_setting_has_its_words(fields: dict[str, Any], text: str) -> None:
    assert text in _changed(**fields)


def test_what_the_account_does_not_say_is_not_a_change() -> None:
    live = BEFORE.model_copy(update={"vllm": None, "pair": ""})
    assert compare_served(live, BEFORE) == ()


def test_another_head_is_a_change_of_the_drafter() -> None:
    served = [_with_head(BEFORE, head) for head in ("a/head", "b/head")]
    assert [change.text for change in compare_served(*served)] == ["drafter a/head -> b/head"]


def _with_head(served: Served, head: str) -> Served:
    text = f'{{"method": "eagle3", "model": "{head}", "num_speculative_tokens": 5}}'
    return served.model_copy(update={"settings": {"speculative-config": text}})


def test_an_update_is_compared_with_the_instances_that_run(world: World) -> None:
    world.deploy(a_plan())
    world.cloud.endpoints[NAME].count = 3
    runtime = RuntimeChoice(vllm="0.28.1", image=f"{IMAGE}.1", cuda="13.0", ami=None)
    preflight = world.preflight(a_plan(runtime=runtime))
    texts = [change.text for change in preflight.changes]
    assert "instances 3 -> 1" in texts
    assert "price per hour $4.22 -> $1.41" in texts
    assert f"image {IMAGE} -> {IMAGE}.1" in texts
    assert "vLLM 0.28.0 -> 0.28.1" in texts


# What an endpoint serves reads the same from its plan and from the account.
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
def test_plan_and_its_endpoint_are_equal(world: World, pair: str, options: dict[str, Any]) -> None:
    plan = made(pair, **options)
    planned = served_by_plan(plan, FILLED)
    assert live(world, plan) == planned.model_copy(update={"price_date": None})


# The dashboard of a deployment, and the retention of its log.
LOG = f"/aws/sagemaker/Endpoints/{NAME}"
TOPIC = "arn:aws:sns:us-east-1:123456789012:on-call"


def observed(plan: Plan, days: int | None = 30) -> Plan:
    return plan.model_copy(update={"observe": Observe(dashboard=True, log_retention_days=days)})


@pytest.mark.parametrize("change", [observed, rolled_out])
def test_the_log_has_the_tags_of_the_user(world: World, change: Callable[[Plan], Plan]) -> None:
    plan = change(a_plan())
    company = plan.company.model_copy(update={"tags": {"team": "search"}})
    world.deploy(plan.model_copy(update={"company": company}))
    assert world.cloud.call("list_tags_log_group", logGroupName=LOG)["tags"] == {"team": "search"}


def alarmed(plan: Plan, topic: str | None = TOPIC, *kinds: AlarmKind) -> Plan:
    """The plan with a dashboard and alarms."""
    observe = Observe(
        dashboard=True, alarms=kinds or ("errors", "acceptance", "load"), alarm_topic=topic
    )
    speculation = plan.speculation
    if speculation:
        speculation = speculation.model_copy(update={"acceptance_floor": 2.0})
    return plan.model_copy(update={"observe": observe, "speculation": speculation})


def test_what_an_update_stops_watching_is_said_and_removed(world: World) -> None:
    world.deploy(alarmed(a_plan()))
    preflight = world.preflight(a_plan())
    assert preflight.change == "nothing"
    assert [change.text for change in preflight.changes] == [
        "dashboard exists -> none",
        "metric filter peagle-AcceptedTokens exists -> none",
        "metric filter peagle-DraftedTokens exists -> none",
        *(f"alarm {NAME}-{kind} exists -> none" for kind in ("5xx", "acceptance", "load")),
    ]
    world.deploy(a_plan())
    assert world.cloud.dashboards == {}
    assert world.cloud.made_alarms == world.cloud.metric_filters == {}
    assert "update_endpoint" not in world.cloud.calls
    assert not world.preflight(a_plan()).changes
