"""The rules of a deployment by their boundaries: states, prices, ends, roles and comparisons.

Each row calls a function of ``peagle.deploy`` with values; nothing is deployed.
"""

from dataclasses import replace
from typing import Any

import pytest

from peagle.aws import sagemaker
from peagle.aws.autoscaling import Bounds
from peagle.aws.sagemaker import ID_TAG, Endpoint
from peagle.deploy import revisions, scaling
from peagle.deploy.context import DeploymentContext, limit_seconds
from peagle.deploy.diff import Change, compare_served
from peagle.deploy.invoke import InvokeRequest
from peagle.deploy.kinds import (
    EXISTS,
    AppliedPlan,
    Kind,
    TaggedDeployment,
    compare_keys,
    compare_kind,
    compare_leaves,
)
from peagle.deploy.preflight import required_change
from peagle.deploy.resources import ALARMS, DASHBOARD, LOG, MODEL, ROLE, SCALING, SCHEDULE
from peagle.deploy.scaling import End, Scale, ScaleRequest
from peagle.deploy.state import (
    Deployment,
    Resource,
    Revision,
    RunningComparison,
    Served,
    start_seconds,
    utc_moment,
    utc_text,
    weight_prefixes,
)
from peagle.deploy.status import LogStatistics, decide_state, is_past_end, usd_per_hour_now
from peagle.engine_log import EngineLoad
from peagle.errors import OptionMissing, OptionsConflict
from peagle.planning.plan import Plan, Rollout, Step
from peagle.proof import Proof
from peagle.render.requests import OWNER_TAG, PROOF_TAG, STACK_TAG, VARIANT
from tests.unit.aws.plans import a_plan, a_revision, another
from tests.unit.aws.test_scaling import SCALING as SCALED

NOW = 1_800_000_000.0
PASSED = Proof(3.0, 200, (), 2.0, passed=True)
FAILED = replace(PASSED, passed=False)


def revision(name: str = "first", proof: Proof | None = PASSED, **served: Any) -> Revision:
    made = a_revision(a_plan(), fingerprint=name)
    updated = made.served.model_copy(update=served)
    return made.model_copy(update={"name": name, "model": name, "proof": proof, "served": updated})


FIRST, SECOND, THIRD = (revision(name) for name in ("first", "second", "third"))


def deployment(serving: Revision | None = FIRST, **fields: Any) -> Deployment:
    return Deployment(
        name="demo", scope="1", account="1", region="us-east-1", serving=serving, **fields
    )


def endpoint(status: str = "InService", serves: str = "first", **fields: Any) -> Endpoint:
    running = {VARIANT: fields.pop("running", 1)}
    return Endpoint("demo", "arn", status, serves, None, NOW, NOW, running=running, **fields)


@pytest.mark.parametrize(("record", "live", "state"), [
    (deployment(), endpoint(), "InService"),
    (deployment(revision(proof=FAILED)), endpoint(), "Unproved"),
    (deployment(revision(proof=None)), endpoint(), "Unproved"),
    (deployment(pending=SECOND), endpoint(serves="second"), "Unproved"),
    (deployment(None, pending=FIRST), endpoint(), "Unproved"),
    (deployment(), endpoint("Updating"), "Updating"),
    (deployment(), None, "Missing"),
    (deployment(None, pending=FIRST), None, "Incomplete"),
    (deployment(ends_at=1.0), None, "Ended"),
    (deployment(ends_at=4e9), None, "Missing"),
])  # fmt: skip
def test_the_state_is_that_of_sagemaker_or_ours(
    record: Deployment, live: Endpoint | None, state: str
) -> None:
    assert decide_state(record, live) == state


@pytest.mark.parametrize(
    ("ends_at", "past"), [(None, False), (NOW - 1, True), (NOW, True), (NOW + 1, False)]
)
def test_the_end_has_passed_at_its_second(ends_at: float | None, past: bool) -> None:
    assert is_past_end(deployment(ends_at=ends_at), NOW) is past


@pytest.mark.parametrize(("record", "live", "usd"), [
    (deployment(), endpoint(), 1.408),
    (deployment(), endpoint(running=3), 4.224),
    (deployment(), endpoint("Failed"), 0.0),
    (deployment(), endpoint("Creating", running=0), 1.408),
    (deployment(), endpoint(running=0), 0.0),
    (deployment(), None, None),
    (deployment(None, pending=FIRST), None, 0.0),
    (deployment(revision(usd_per_hour=None)), endpoint(), None),
    (deployment(revision(instance_count=0)), endpoint(running=5), 1.408),
])  # fmt: skip
def test_the_price_is_that_of_what_runs(
    record: Deployment, live: Endpoint | None, usd: float | None
) -> None:
    assert usd_per_hour_now(record, live) == usd


def compared(share: float = 0.25) -> Deployment:
    return deployment(comparison=RunningComparison(candidate=SECOND, config="both", share=share))


def test_during_a_comparison_both_variants_cost() -> None:
    live = replace(endpoint(serves="both"), running={VARIANT: 2, revisions.CANDIDATE: 1})
    assert usd_per_hour_now(compared(), live) == pytest.approx(3 * 1.408)
    assert revisions.compute_usd_per_hour(compared(), live) == {
        VARIANT: pytest.approx(2 * 1.408),
        revisions.CANDIDATE: pytest.approx(1.408),
    }
    unpriced = deployment(
        comparison=RunningComparison(
            candidate=revision("second", usd_per_hour=None), config="both", share=0.5
        )
    )
    assert usd_per_hour_now(unpriced, live) is None


@pytest.mark.parametrize(
    ("served", "count", "usd"), [({}, 1, 1.408), ({}, 4, 5.632), ({"usd_per_hour": None}, 4, None)]
)
def test_the_price_is_in_proportion_to_the_instances(
    served: dict[str, Any], count: int, usd: float | None
) -> None:
    more = revision(**served).served.with_instances(count)
    assert (more.instance_count, more.usd_per_hour) == (count, usd)


@pytest.mark.parametrize(("served", "per_instance", "engines"), [
    ({"instance_count": 2}, 1, 2),
    ({"copies": 8, "instance_count": 2}, 4, 8),
    ({"copies": 8, "instance_count": 1, "configured_count": 4}, 2, 8),
    ({"copies": 1, "instance_count": 2}, 1, 1),
    ({"copies": 3, "instance_count": 0}, 3, 3),
])  # fmt: skip
def test_how_many_copies_an_instance_holds(
    served: dict[str, Any], per_instance: int, engines: int
) -> None:
    side = revision(**served).served
    assert (side.per_instance, side.engines) == (per_instance, engines)


@pytest.mark.parametrize(("served", "seconds"), [
    ({"startup_timeout_seconds": 600, "weights": {}}, 600),
    ({"startup_timeout_seconds": None, "weights": {}}, 3600),
    ({"startup_timeout_seconds": 600, "download_timeout_seconds": 900, "weights": {}}, 600),
    (
        {
            "startup_timeout_seconds": 600,
            "download_timeout_seconds": 900,
            "weights": {"model": "s3://a/b/"},
        },
        1500,
    ),
])  # fmt: skip
def test_a_start_is_waited_for_as_long_as_sagemaker_does(
    served: dict[str, Any], seconds: int
) -> None:
    assert start_seconds(revision(**served).served) == seconds


def test_an_update_in_steps_is_waited_for_longer() -> None:
    rollout = Rollout(
        kind="rolling", step=Step(value=1, unit="instances"), baking_seconds=60,
        extra_instances=1, extra_usd_per_hour=None, alarms=("errors",),
    )  # fmt: skip
    plan = a_plan().model_copy(update={"rollout": rollout, "instance_count": 3})
    stepped = FIRST.model_copy(update={"plan": plan})
    assert limit_seconds(stepped) == 3 * limit_seconds(FIRST) + 4 * 60


def test_streamed_weights_are_in_use_too() -> None:
    served = revision(
        weights={"model": "s3://a/mounted"},
        settings={"model": "s3://a/streamed/", "speculative-config": '{"model": "s3://a/head"}'},
    ).served
    assert [*weight_prefixes(served)] == ["s3://a/mounted/", "s3://a/streamed/", "s3://a/head/"]


@pytest.mark.parametrize("text", ["", "none", "2026-11-22", "2026-11-22T20:15:00", "2026-13-01T0"])
def test_only_a_moment_in_utc_is_one(text: str) -> None:
    assert utc_moment(text) is None
    assert utc_moment(utc_text(NOW)) == NOW


# Roles of revisions.
@pytest.mark.parametrize(("record", "target"), [
    (deployment(), None),
    (deployment(previous=SECOND), SECOND),
    (deployment(pending=SECOND), FIRST),
    (deployment(None, pending=SECOND), None),
    (deployment(pending=SECOND, previous=THIRD), FIRST),
    (deployment(previous=SECOND, pending=revision("second", None)), SECOND),  # interrupted
    (deployment(previous=SECOND, pending=revision("second", FAILED)), FIRST),  # is undone
    (deployment(revision(proof=None), previous=SECOND), FIRST),
])  # fmt: skip
def test_what_a_rollback_returns_to(record: Deployment, target: Revision | None) -> None:
    chosen = revisions.rollback_target(record)
    assert (chosen and chosen.name) == (target and target.name)


@pytest.mark.parametrize(("record", "proved", "previous"), [
    (deployment(), FIRST, None),
    (deployment(), SECOND, "first"),
    (deployment(revision(proof=FAILED)), SECOND, "first"),
    (deployment(revision(proof=FAILED), previous=THIRD), SECOND, "third"),
    (deployment(previous=THIRD), SECOND, "first"),
    (deployment(previous=SECOND), SECOND, "first"),
    (deployment(None), FIRST, None),
])  # fmt: skip
def test_what_is_kept_once_a_revision_is_proved(
    record: Deployment, proved: Revision, previous: str | None
) -> None:
    fields = revisions.fields_when_proved(record, proved)
    kept = fields["previous"]
    assert (fields["serving"], fields["pending"]) == (proved, None)
    assert (kept.name if kept else None) == previous


@pytest.mark.parametrize(("record", "proved", "changed"), [
    (deployment(), FIRST, {"serving", "failure"}),
    (deployment(pending=SECOND), FIRST, {"serving"}),
    (deployment(), revision(proof=FAILED), {"serving"}),
    (deployment(pending=SECOND), revision("second", FAILED), {"pending"}),
    (deployment(pending=SECOND), SECOND, {"serving", "pending", "previous", "failure"}),
])  # fmt: skip
def test_what_later_proof_changes(record: Deployment, proved: Revision, changed: set[str]) -> None:
    assert revisions.fields_with_proof(record, proved).keys() == changed


def of(kind: str, name: str, fingerprint: str) -> Resource:
    return Resource(type=kind, name=name, made=True, revision=fingerprint)  # type: ignore[arg-type]


@pytest.mark.parametrize(("resource", "is_stale"), [
    (of("Model", "first", "other"), False),
    (of("Model", "old", "old"), True),
    (of("Model", "renamed", "first"), False),
    (of("EndpointConfig", "second", "x"), False),
    (of("EndpointConfig", "third", "x"), True),
    (of("EndpointConfig", "both", "x"), False),
    (of("S3Objects", "s3://a/used/", "x"), False),
    (of("S3Objects", "s3://a/used/drafter/", "x"), False),
    (of("S3Objects", "s3://a/", "x"), False),
    (of("S3Objects", "s3://a/unused/", "x"), True),
    (of("S3Objects", "s3://a/unused/", "first"), False),
    (of("Alarm", "old", "old"), False),
    (of("Endpoint", "demo", "old"), False),
])  # fmt: skip
def test_what_no_kept_revision_needs_is_stale(resource: Resource, is_stale: bool) -> None:
    serving = revision(weights={"model": "s3://a/used/"})
    comparison = RunningComparison(candidate=SECOND, config="both", share=0.1)
    record = deployment(serving, comparison=comparison, resources=(resource,))
    assert (revisions.stale_resources(record) == (resource,)) is is_stale


@pytest.mark.parametrize(("text", "proof"), [
    ("", None),
    ("revision=other passed=yes drafts=3", None),
    ("revision=first passed=yes drafts=x", None),
    ("revision=first", None),
    ("revision=first passed=yes drafts=3", Proof(None, 3, (), None, True, "log")),
    ("revision=first passed=no drafts=0 length=1.50 floor=2.00 source=counters",
     Proof(1.5, 0, (), 2.0, False, "counters")),
])  # fmt: skip
def test_a_proof_is_read_from_its_tag(text: str, proof: Proof | None) -> None:
    for key in (PROOF_TAG, revisions.PREVIOUS_TAG):
        assert revisions.proof_in({key: text}, "first") == proof
    if proof:
        tag = revisions.proof_tag(proof, "first", NOW)
        assert revisions.proof_in({tag["Key"]: tag["Value"]}, "first") == proof


@pytest.mark.parametrize(("tags", "owner"), [
    ({}, "an unknown owner"),
    ({ID_TAG: "1"}, ""),
    ({OWNER_TAG: "peagle"}, ""),
    ({OWNER_TAG: "terraform", ID_TAG: "1"}, "a Terraform module"),
    ({OWNER_TAG: "cdk"}, "a CDK app"),
    ({OWNER_TAG: "someone"}, "someone"),
    ({STACK_TAG: "s"}, "CloudFormation stack s"),
    ({"aws:cloudformation:stack-name": "s"}, "CloudFormation stack s"),
    ({OWNER_TAG: "cloudformation"}, "a CloudFormation stack"),
])  # fmt: skip
def test_the_owner_is_who_changes_it(tags: dict[str, str], owner: str) -> None:
    assert revisions.read_owner(tags) == owner


@pytest.mark.parametrize(
    ("share", "weight", "candidate"), [(0.1, 1.0, 0.111111), (0.5, 1.0, 1.0), (0.5, 3.0, 3.0)]
)
def test_a_share_and_its_weight(share: float, weight: float, candidate: float) -> None:
    assert revisions.candidate_weight(share, weight) == candidate
    weights = {VARIANT: weight, revisions.CANDIDATE: candidate}
    assert revisions.candidate_share(weights) == pytest.approx(share, abs=1e-6)
    assert revisions.candidate_share({VARIANT: 0.0, revisions.CANDIDATE: 0.0}) == 0.0


# What a deploy does.
class Desired:
    """What ``required_change`` reads of a ``DesiredState``."""

    def __init__(self, made: Revision) -> None:
        self.revision = made


@pytest.mark.parametrize(("record", "live", "action"), [
    (None, None, "create"),
    (None, endpoint(), "create"),
    (deployment(), None, "create"),
    (deployment(), endpoint("Failed"), "create"),
    (deployment(), endpoint("Deleting"), "create"),
    (deployment(), endpoint("Creating"), "create"),
    (deployment(), endpoint("Updating"), "update"),
    (deployment(), endpoint(serves="second"), "update"),
    (deployment(SECOND), endpoint("Updating", "second", pending_revision="first"), "update"),
    (deployment(), endpoint(), "nothing"),
    (deployment(revision(proof=None)), endpoint(), "prove"),
    (deployment(revision(proof=FAILED)), endpoint(), "prove"),
    (deployment(pending=SECOND), endpoint(), "prove"),
    (deployment(SECOND), endpoint(), "prove"),
    (deployment(None, pending=FIRST), endpoint(), "prove"),
])  # fmt: skip
def test_what_a_deploy_of_the_first_revision_does(
    record: Deployment | None, live: Endpoint | None, action: str
) -> None:
    assert required_change(record, live, Desired(FIRST)) == action  # type: ignore[arg-type]


# Scaling and ends.
@pytest.mark.parametrize(("request_", "error"), [
    ({}, OptionMissing),
    ({"off": True, "minimum": 1}, OptionsConflict),
    ({"to": 0, "target": 2.0}, OptionsConflict),
    ({"to": 0}, None),
    ({"off": True}, None),
    ({"off": True, "to": 2}, None),
    ({"minimum": 0}, None),
    ({"target": 0.5}, None),
])  # fmt: skip
def test_parts_of_a_request_that_contradict_each_other(
    request_: dict[str, Any], error: type[Exception] | None
) -> None:
    if error:
        with pytest.raises(error):
            ScaleRequest(**request_)
    else:
        assert ScaleRequest(**request_).changes_bounds is bool({"minimum", "target"} & {*request_})


@pytest.mark.parametrize(
    ("count", "per_instance", "instances"), [(None, 4, None), (4, 4, 1), (5, 4, 2), (0, 1, 0)]
)
def test_the_instances_that_copies_need(
    count: int | None, per_instance: int, instances: int | None
) -> None:
    change = Scale(endpoint(), None, count, per_instance)
    assert change.instances == instances
    assert change.is_nothing is (count is None)
    assert change.end_text == ""
    moved = replace(change, end=End(NOW, 12.0))
    assert moved.end_text == "2027-01-15T08:00:00Z: $12.00 from now on"


@pytest.mark.parametrize(("ends_at", "budget", "usd", "end"), [
    (NOW + 7200, 10.0, 10.0, NOW + 3600),
    (NOW + 1800, 10.0, 10.0, NOW + 1800),
    (NOW + 7200, None, 10.0, NOW + 7200),
    (NOW + 7200, 10.0, None, NOW + 7200),
    (NOW + 7200, 10.0, 0.0, NOW + 7200),
    (None, 10.0, 10.0, None),
])  # fmt: skip
def test_a_higher_price_moves_the_end_of_a_budget_to_an_earlier_time_only(
    ends_at: float | None, budget: float | None, usd: float | None, end: float | None
) -> None:
    record = deployment(ends_at=ends_at, budget_usd=budget)
    assert scaling._end_at_price(record, usd, NOW) == End(end, budget)


@pytest.mark.parametrize(("value", "budget"), [
    ("12.5", 12.5), ("none", None), ("0", None), ("-1", None), ("inf", None), ("nan", None),
])  # fmt: skip
def test_a_budget_is_a_positive_amount(value: str, budget: float | None) -> None:
    tags = {"peagle:budget": value, "peagle:ends": utc_text(NOW)}
    assert scaling.budget_in(tags) == budget
    kept = deployment(ends_at=1.0, budget_usd=1.0)
    moved = scaling.with_end_in(kept, tags)
    assert (moved.ends_at, moved.budget_usd) == (NOW, budget)
    assert scaling.with_end_in(kept, {}) is kept
    assert scaling.with_end_in(kept, None) is kept


# Comparisons field by field: before, what the account has; after, what the plan wants.
@pytest.mark.parametrize(("planned", "actual", "found"), [
    ({"a": 1}, {"a": 1, "of AWS": 2}, []),
    ({"a": 1}, {}, [("x.a", None, 1)]),
    ({"a": None}, {}, []),
    ({"a": None}, {"a": 0}, []),
    ({"a": None}, {"a": 1}, [("x.a", 1, None)]),
    ({"a": [1, 2]}, {"a": [1, 3]}, [("x.a[1]", 3, 2)]),
    ({"a": [1, 2]}, {"a": [1]}, [("x.a", [1], [1, 2])]),
    ({"a": {"b": 1}}, {"a": {"b": 2}}, [("x.a.b", 2, 1)]),
    ({"a": {"b": 1}}, {"a": 2}, [("x.a", 2, {"b": 1})]),
])  # fmt: skip
def test_the_leaves_that_differ(
    planned: dict[str, Any], actual: dict[str, Any], found: list[tuple[str, Any, Any]]
) -> None:
    assert [(c.setting, c.before, c.after) for c in compare_leaves("x", planned, actual)] == found


def test_the_keys_that_differ() -> None:
    changes = compare_keys("x", {"a": 1, "b": 2}, {"b": 2, "c": 3})
    assert [*changes] == [Change("x.a", None, 1), Change("x.c", 3, None)]


@pytest.mark.parametrize(("actual", "fields"), [
    ({}, []),
    ({"ActionsEnabled": True}, []),
    ({"ActionsEnabled": False}, ["ActionsEnabled"]),
    ({"Threshold": 3.0}, ["Threshold"]),
    ({"AlarmActions": []}, []),
    ({"AlarmActions": ["b", "a"]}, ["AlarmActions"]),
    ({"OKActions": ["b", "a"]}, []),
    ({"AlarmDescription": "mine"}, []),
    ({"Dimensions": [{"Name": "b", "Value": "2"}, {"Name": "a", "Value": "1"}]}, []),
    ({"Dimensions": [{"Name": "a", "Value": "1"}]}, ["Dimensions"]),
])  # fmt: skip
def test_the_fields_of_an_alarm(actual: dict[str, Any], fields: list[str]) -> None:
    planned = {
        "Threshold": 2.0,
        "OKActions": ["a", "b"],
        "Dimensions": [{"Name": "a", "Value": "1"}, {"Name": "b", "Value": "2"}],
    }
    compared = ALARMS.compare("n", planned, {**planned, **actual})
    assert [c.setting for c in compared] == [f"alarm.n.{field}" for field in fields]


def scaled_plan(plan: Plan, **numbers: Any) -> Plan:
    return plan.model_copy(update={"scaling": SCALED.model_copy(update=numbers)})


def test_scaling_is_compared_by_its_bounds_target_and_cooldowns() -> None:
    (name, body), *_ = SCALING.desired(AppliedPlan(scaled_plan(a_plan()))).items()
    assert name == a_plan().name
    for key, value in {"min_instances": 2, "max_instances": 4, "target_concurrency": 5.0,
                       "scale_in_cooldown": 1, "scale_out_cooldown": 1}.items():  # fmt: skip
        (change,) = SCALING.compare(name, body, {**body, key: value})
        assert (change.setting, change.before) == (f"scaling.{key}", value)
    assert SCALING.desired(AppliedPlan(a_plan())) == {name: {}}
    assert len([*SCALING.compare(name, {}, body)]) == len(body)


def test_a_schedule_is_that_of_the_end() -> None:
    plan = a_plan()
    assert SCHEDULE.desired(AppliedPlan(plan)) == {}
    ((name, body),) = SCHEDULE.desired(AppliedPlan(plan, "", NOW)).items()
    actual = {"State": "ENABLED", "ScheduleExpression": "at(2027-01-15T08:00:00)"}
    assert [*SCHEDULE.compare(name, body, actual)] == []
    late = {**actual, "ScheduleExpression": "at(2027-01-15T08:00:01)"}
    assert [c.setting for c in SCHEDULE.compare(name, body, late)] == [
        f"schedule.{name}.ScheduleExpression"
    ]
    copies = {**body, "copies": True}  # theirs ends some time before
    assert [*SCHEDULE.compare(name, copies, late)] == []
    assert [c.before for c in SCHEDULE.compare(name, copies, {"State": "DISABLED"})] == ["DISABLED"]
    both = SCHEDULE.schedules("us-east-1", "demo", True, NOW)
    assert [body["copies"] for body in both.values()] == [True, False]


@pytest.mark.parametrize(("change", "text"), [
    (Change("k", 5, 0), "K 5 -> no speculation"),
    (Change("usd_per_hour", None, 1.5), "price per hour unknown -> $1.50"),
    (Change("engine.dtype", None, "half"), "--dtype default -> half"),
    (Change("engine.enforce-eager", True, None), "--enforce-eager set -> default"),
    (Change("variable.A", None, "b"), "A default -> b"),
    (Change("speculation.model", "a", "b"), "drafter a -> b"),
    (Change("speculation.x", "a", "b"), "speculation: x a -> b"),
    (Change("weights.model", "a", "b"), "weights in /opt/ml/model a -> b"),
    (Change("subnets", (), ("a", "b")), "subnets none -> a, b"),
    (Change("network_isolation", False, True), "network isolation off -> on"),
    (Change("end", None, "2027"), "end none -> 2027"),
    (Change("log.retention_days", None, 30), "log retention days none -> 30"),
    (Change("alarm.a-5xx", None, "exists"), "alarm a-5xx none -> exists"),
    (Change("alarm.a.Threshold", 2.0, 2.5), "alarm a.Threshold 2.0 -> 2.5"),
    (Change("dashboard.x", "a\nb", "c" * 160), f"dashboard x a b -> {'c' * 160}"),
    (Change("dashboard.x", "a", "c" * 161), f"dashboard x a -> {'c' * 157}..."),
])  # fmt: skip
def test_a_change_as_it_is_shown(change: Change, text: str) -> None:
    assert change.text == text


def test_a_secret_is_hidden_and_what_only_one_side_has_is_a_change() -> None:
    before = FIRST.served.model_copy(update={"variables": {"HF_TOKEN": "hf_secret", "A": "1"}})
    after = before.model_copy(update={"variables": {"A": "2"}})
    assert compare_served(before, after) == (
        Change("variable.A", "1", "2"),
        Change("variable.HF_TOKEN", "(hidden)", None),
    )
    assert compare_served(before, before) == ()


def test_an_answer_is_streamed_unless_asked_otherwise() -> None:
    body = InvokeRequest("Hello").body(is_chat_model=True)
    assert (body["stream"], body["max_tokens"], body["temperature"]) == (True, 256, 0.0)
    assert "messages" in body
    assert "prompt" in InvokeRequest("Hello").body(is_chat_model=False)
    assert "prompt" in InvokeRequest("Hello", chat=False).body(is_chat_model=True)
    assert InvokeRequest("", payload={"a": 1}).body(is_chat_model=True) == {"a": 1}


def load(running: int, tokens: float) -> EngineLoad:
    return EngineLoad(running=running, waiting=0, tokens_per_second=tokens, kv_cache_share=None)


def test_statistics_of_a_log() -> None:
    statistics = LogStatistics()
    assert statistics.itl is None
    assert statistics.tokens_per_second(60, 10) is None
    statistics.loads = {"a": [(10.0, load(2, 100)), (20.0, load(1, 50))], "b": [(5.0, load(0, 9))]}
    assert statistics.itl == pytest.approx(3 / 150), "the last interval of b had no requests left"
    assert statistics.tokens_per_second(60, 10) == pytest.approx((100 + 50 + 9) * 10 / 60)
    assert statistics.newest(20.0) == [load(1, 50)]
    assert statistics.newest(20.1) == []
    assert len(statistics.newest(5.0)) == 2


@pytest.mark.parametrize(("bounds", "text"), [
    (Bounds(1, 4, 8.0), "1 to 4 instances, target 8 requests at a time each"),
    (Bounds(0, 2, None, scales_copies=True), "0 to 2 copies"),
])  # fmt: skip
def test_bounds_that_are_registered(bounds: Bounds, text: str) -> None:
    assert bounds.text == text
    assert bounds.is_ours is (bounds.target is not None)


def test_a_plan_of_another_machine_changes_nothing_that_is_unknown() -> None:
    served: Served = a_revision(another(a_plan())).served
    assert [c.setting for c in compare_served(FIRST.served, served)] == ["engine.k"]


# What a kind finds, and what is removed.
class Account:
    """Answers each listing, and Describe call, with the same documents, and keeps what changes."""

    region, partition, account = "us-east-1", "aws", "111122223333"

    def __init__(self, *documents: dict[str, Any]) -> None:
        self.documents = documents
        self.deleted: list[tuple[str, dict[str, Any]]] = []

    def items(self, *_: Any, **parameters: Any) -> list[dict[str, Any]]:
        return [*self.documents]

    def find(self, service: str, operation: str, **parameters: Any) -> dict[str, Any] | None:
        return next(iter(self.documents), None)

    def delete(self, service: str, operation: str, **parameters: Any) -> None:
        self.deleted.append((operation, parameters))


def names(kind: Kind, account: Account, tagged: TaggedDeployment) -> list[str]:
    return [resource.name for resource in kind.find(account, tagged)]  # type: ignore[arg-type]


DEMO = TaggedDeployment("demo", "first")
LOG_NAME = "/aws/sagemaker/Endpoints/demo"


def alarm(name: str, dimension: tuple[str, str] = ("Other", ""), space: str = "") -> dict[str, Any]:
    metrics = [{"MetricStat": {"Metric": {"Namespace": space}}}] if space else []
    dimensions = [{"Name": dimension[0], "Value": dimension[1]}]
    return {"AlarmName": name, "Dimensions": dimensions, "Metrics": metrics}


def test_the_log_of_an_endpoint_is_not_that_of_a_longer_name() -> None:
    account = Account({"logGroupName": f"{LOG_NAME}-2"})
    assert names(LOG, account, DEMO) == []
    account = Account({"logGroupName": LOG_NAME}, {"logGroupName": f"{LOG_NAME}-2"})
    assert names(LOG, account, DEMO) == [LOG_NAME]


@pytest.mark.parametrize(("listed", "ours"), [
    (alarm("peagle-demo-5xx", ("EndpointName", "demo")), True),
    (alarm("peagle-demo-5xx", ("InferenceComponentName", "demo")), True),
    (alarm("peagle-demo-5xx", ("EndpointName", "peagle-demo")), False),
    (alarm("peagle-demo-5xx", ("VariantName", "demo")), False),
    (alarm("peagle-demo-acceptance", space="Peagle/demo"), True),
    (alarm("peagle-demo-acceptance", space="Peagle/peagle-demo"), False),
    (alarm("theirs", ("EndpointName", "demo")), False),
])  # fmt: skip
def test_alarms_of_the_endpoint(listed: dict[str, Any], ours: bool) -> None:
    assert names(ALARMS, Account(listed), DEMO) == ([listed["AlarmName"]] if ours else [])


@pytest.mark.parametrize(("component", "is_ours"), [("demo", True), ("peagle-demo", False)])
def test_the_alarm_that_wakes_another_endpoint_stays(component: str, is_ours: bool) -> None:
    wakes = alarm("peagle-demo-wake-up", ("InferenceComponentName", component))
    listed = names(SCALING, Account(wakes | {"ResourceId": ""}), DEMO)
    assert listed == ["peagle-demo-wake-up"] * is_ours


@pytest.mark.parametrize(("resource", "dimension"), [
    ("endpoint/demo/variant/AllTraffic", "sagemaker:variant:DesiredInstanceCount"),
    ("inference-component/demo", "sagemaker:inference-component:DesiredCopyCount"),
])  # fmt: skip
def test_scaling_targets_of_the_endpoint(resource: str, dimension: str) -> None:
    others = (resource.replace("demo", "demo-2"), resource.replace("demo", "de"))
    account = Account(*({"ResourceId": each, "AlarmName": ""} for each in (*others, resource)))
    (found,) = SCALING.find(account, DEMO)  # type: ignore[arg-type]
    assert found.name == resource
    SCALING.delete(account, "", found)  # type: ignore[arg-type]
    ((operation, parameters),) = account.deleted
    assert operation == "deregister_scalable_target"
    assert (parameters["ResourceId"], parameters["ScalableDimension"]) == (resource, dimension)


@pytest.mark.parametrize(("tagged", "schedules", "roles"), [
    (DEMO, 0, 0),
    (replace(DEMO, ends=True), 1, 1),
    (replace(DEMO, ends=True, copies=True), 2, 1),
    (replace(DEMO, copies=True), 0, 0),
])  # fmt: skip
def test_a_deployment_with_an_end_has_schedules(
    tagged: TaggedDeployment, schedules: int, roles: int
) -> None:
    assert len(names(SCHEDULE, Account(), tagged)) == schedules
    assert len(names(ROLE, Account(), tagged)) == roles


@pytest.mark.parametrize("body", ["", '{"widgets": ["x-demo"]}', '{"widgets": ["demo"]}'])
def test_the_dashboard_of_an_endpoint_names_it(body: str) -> None:
    account = Account({"DashboardBody": body})
    expected = ["peagle-demo-us-east-1"] if '"demo"' in body else []
    assert names(DASHBOARD, account, DEMO) == expected
    assert names(DASHBOARD, Account(), DEMO) == []


class Fixed(Kind):
    """A kind with two resources; the account has those of ``there``."""

    missing, path, type = "x.{}", "x.{}", "Alarm"

    def __init__(self, **there: int) -> None:
        self.there = there

    def desired(self, applied: AppliedPlan) -> dict[str, dict[str, Any]]:
        return {"a": {"v": 1}, "b": {"v": 2}}

    def read(self, aws: Any, plan: Plan, names: Any) -> dict[str, dict[str, Any]]:
        return {name: {"v": value} for name, value in self.there.items() if name in names}


@pytest.mark.parametrize(("there", "recorded", "found"), [
    ({"a": 1, "b": 2}, (), []),
    ({"a": 1, "b": 3}, (), [Change("x.b.v", 3, 2)]),
    ({"a": 1}, (), [Change("x.b", None, EXISTS)]),
    ({"a": 1, "b": 2, "c": 3}, (), []),  # others'
    ({"a": 1, "b": 2, "c": 3}, ("c",), [Change("x.c", EXISTS, None)]),
    ({"a": 1, "b": 2}, ("c",), []),  # gone already
    ({"a": 1, "b": 2}, ("a",), []),
])  # fmt: skip
def test_the_comparison_of_a_kind(
    there: dict[str, int], recorded: tuple[str, ...], found: list[Change]
) -> None:
    listed = [of("Alarm", name, "old") for name in recorded]
    compared = compare_kind(Fixed(**there), None, AppliedPlan(a_plan()), listed)  # type: ignore[arg-type]
    assert [*compared] == found


@pytest.mark.parametrize(("owner", "of_record", "is_ours"), [
    (None, "", True),
    ("1", "", True),
    ("2", "", False),
    ("", "", False),
    ("", "a CDK app", True),  # what a template left
    ("2", "a CDK app", False),
])  # fmt: skip
def test_only_what_is_ours_is_removed(
    monkeypatch: pytest.MonkeyPatch, owner: str | None, of_record: str, is_ours: bool
) -> None:
    removed: list[str] = []
    monkeypatch.setattr(sagemaker, "owner", lambda aws, kind, name: owner)
    monkeypatch.setattr(sagemaker, "delete", lambda aws, kind, name: removed.append(name))
    context = DeploymentContext(Account(), deployment(id="1", owner=of_record))  # type: ignore[arg-type]
    assert MODEL.remove(context, of("Model", "first", "first")) is is_ours
    assert removed == (["first"] if is_ours else [])
