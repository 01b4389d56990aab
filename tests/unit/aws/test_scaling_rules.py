"""How many instances and copies, and until when, by the boundaries of each rule.

What Application Auto Scaling has registered, and the endpoint, are values; nothing is deployed.
"""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from peagle.aws import autoscaling, sagemaker
from peagle.aws.autoscaling import Bounds, to_bounds
from peagle.aws.errors import AccessDenied
from peagle.aws.sagemaker import Endpoint
from peagle.deploy import scaling
from peagle.deploy.context import DeploymentContext
from peagle.deploy.resources import SCALING
from peagle.deploy.revisions import CANDIDATE
from peagle.deploy.scaling import End, Scale, ScaleRequest, ScalingChange
from peagle.deploy.state import Deployment, Revision
from peagle.errors import PeagleError
from peagle.options import MOST_COUNT
from peagle.planning.plan import Limit, Scaling
from peagle.render.requests import VARIANT
from tests.support import raises_code
from tests.unit.aws.cloud import START
from tests.unit.aws.plans import a_plan
from tests.unit.aws.test_deploy_rules import FIRST, deployment, endpoint, revision
from tests.unit.aws.test_scaling import SCALING as SCALED
from tests.unit.aws.world import World

COPIES = SCALED.model_copy(update={"min_copies": 1, "max_copies": 12})
OURS, FOREIGN = to_bounds(SCALED), Bounds(1, 3)
DENIED = AccessDenied("no", "ask")


@dataclass
class Account:
    """What the account has: ``registered`` may be an error."""

    registered: Bounds | AccessDenied | None = None
    live: Endpoint | None = None


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Account:
    has = Account(live=endpoint())

    def registered(aws: Any, name: str, policies: bool = True) -> Bounds | None:
        if isinstance(has.registered, AccessDenied):
            raise has.registered
        return has.registered

    monkeypatch.setattr(autoscaling, "registered", registered)
    monkeypatch.setattr(sagemaker, "describe", lambda aws, name: has.live)
    return has


def planned(numbers: Scaling | None = SCALED, **served: Any) -> Revision:
    """A revision whose plan has this scaling."""
    made = revision(**served)
    return made.model_copy(update={"plan": a_plan(scaling=numbers)})


ELSEWHERE = FIRST.model_copy(update={"plan": None})
"""A revision that another machine has deployed."""


@pytest.mark.parametrize(("record", "registered", "after", "change"), [
    (None, None, None, None),
    (None, None, SCALED, (None, SCALED)),
    (deployment(), FOREIGN, None, None),
    (deployment(), OURS, None, None),  # as of `peagle scale`
    (deployment(planned()), OURS, None, (OURS, None)),
    (deployment(planned()), None, None, None),
    (deployment(pending=planned()), OURS, None, (OURS, None)),
    (deployment(ELSEWHERE), OURS, None, (OURS, None)),
    (deployment(ELSEWHERE), FOREIGN, None, None),
    (deployment(planned()), OURS, SCALED, None),
    (deployment(planned()), replace(OURS, maximum=4), SCALED, (replace(OURS, maximum=4), SCALED)),
    (deployment(planned()), FOREIGN, SCALED, (FOREIGN, SCALED)),
])  # fmt: skip
def test_what_a_deploy_changes_of_the_scaling(
    account: Account, record: Any, registered: Any, after: Any, change: Any
) -> None:
    account.registered = registered
    made = scaling.required_scaling(None, record, account.live, after)  # type: ignore[arg-type]
    assert (made and (made.before, made.after)) == change


def test_a_plan_that_scales_must_be_able_to_read_what_is_registered(account: Account) -> None:
    account.registered = DENIED
    with pytest.raises(AccessDenied):
        scaling.required_scaling(None, deployment(), account.live, SCALED)  # type: ignore[arg-type]
    change = scaling.required_scaling(None, None, None, SCALED)  # type: ignore[arg-type]
    assert change is not None
    assert change.text == "none -> 1 to 3 instances, target 4 requests at a time each"


@pytest.mark.parametrize(("record", "registered", "running", "count"), [
    (deployment(), None, 3, 1),
    (deployment(), OURS, 3, 3),
    (deployment(), FOREIGN, 3, 3),
    (deployment(), OURS, 0, 1),
    (deployment(planned()), None, 3, 3),
    (deployment(planned()), DENIED, 3, 3),
    (deployment(), DENIED, 3, 1),
    (None, None, 3, 1),
])  # fmt: skip
def test_how_many_instances_an_update_starts(
    account: Account, record: Any, registered: Any, running: int, count: int
) -> None:
    account.registered = registered
    live = endpoint(running=running)
    assert scaling.count_at_update(None, record, FIRST, live) == count  # type: ignore[arg-type]


@pytest.mark.parametrize(("update", "registered", "usd"), [
    (planned(), None, 3 * 1.408),
    (FIRST, None, 2 * 1.408),  # what runs is what serves
    (FIRST, Bounds(1, 5), 5 * 1.408),
    (FIRST, Bounds(1, 1), 2 * 1.408),
    (FIRST, DENIED, 2 * 1.408),
    (revision("second"), None, 1.408),
    (revision(copies=4, instance_count=1), Bounds(1, 6, scales_copies=True), 2 * 1.408),
    (revision(usd_per_hour=None), None, None),
])  # fmt: skip
def test_the_price_of_the_most_instances(
    account: Account, update: Revision, registered: Any, usd: Any
) -> None:
    account.registered = registered
    price = scaling.highest_price(None, deployment(), update, endpoint(running=2))  # type: ignore[arg-type]
    assert price == (None if usd is None else pytest.approx(usd))


def test_without_an_endpoint_the_price_is_the_plans() -> None:
    assert scaling.highest_price(None, deployment(), FIRST, None) == 1.408  # type: ignore[arg-type]


def limited(limit: Limit | None, **served: Any) -> Revision:
    made = revision(**served)
    return made.model_copy(update={"plan": a_plan(limit=limit)})


@pytest.mark.parametrize(("record", "limit", "end"), [
    (deployment(), None, End()),
    (deployment(), Limit(ttl_seconds=60), End(START + 60)),
    (deployment(), Limit(budget_usd=1.408), End(START + 3600, 1.408)),
    (deployment(), Limit(ttl_seconds=60, budget_usd=1.408), End(START + 60, 1.408)),
    (deployment(ends_at=START + 9), Limit(), End()),
    (deployment(ends_at=START + 9), Limit(ttl_seconds=60), End(START + 60)),
    (deployment(ends_at=START + 9), None, End(START + 9)),
    (deployment(ends_at=START + 9000, budget_usd=1.408), None, End(START + 3600, 1.408)),
    (deployment(ends_at=START + 1, budget_usd=9.0), None, End(START + 1, 9.0)),
])  # fmt: skip
def test_when_a_deployment_ends(
    account: Account, world: World, record: Deployment, limit: Limit | None, end: End
) -> None:
    context = DeploymentContext(world.aws, record, clock=world.clock)
    assert scaling.planned_end(context, limited(limit)) == end


@pytest.mark.parametrize("ends_at", [START, START - 1])
@pytest.mark.parametrize(
    ("live", "refused"), [(endpoint(), True), (endpoint("Failed"), False), (None, False)]
)
def test_an_end_that_has_passed(
    account: Account, world: World, ends_at: float, live: Endpoint | None, refused: bool
) -> None:
    account.live = live
    context = DeploymentContext(world.aws, deployment(ends_at=ends_at), clock=world.clock)
    if refused:
        with raises_code("limit-passed"):
            scaling.planned_end(context, FIRST)
    else:
        assert scaling.planned_end(context, FIRST) == End()


def test_candidate_of_comparison_does_not_count_for_budget(account: Account, world: World) -> None:
    account.live = replace(endpoint(), running={VARIANT: 1, CANDIDATE: 3})
    context = DeploymentContext(world.aws, deployment(), clock=world.clock)
    end = scaling.planned_end(context, limited(Limit(budget_usd=1.408)))
    assert end == End(START + 3600, 1.408)


# ``peagle scale``
PER_INSTANCE: dict[str, Any] = {"copies": 4, "instance_count": 1}


def on_component(running: int = 4, count: int = 1) -> Endpoint:
    counts = {"CurrentCopyCount": running, "DesiredCopyCount": running}
    live = endpoint(running=count)
    return replace(live, instances_config="shared", component={"RuntimeConfig": counts})


@pytest.mark.parametrize(("registered", "request_", "after", "count"), [
    (None, {"to": 2}, None, 2),
    (None, {"to": 1}, None, None),  # it is so already
    (OURS, {"off": True}, "off", None),
    (None, {"off": True}, None, None),
    (OURS, {"off": True, "to": 2}, "off", 2),
    (OURS, {"maximum": 3}, None, None),
    (OURS, {"maximum": 5}, {"max_instances": 5}, None),
    (OURS, {"minimum": 3}, {"min_instances": 3}, None),
    (OURS, {"target": 6.0}, {"target_concurrency": 6.0}, None),
    (None, {"maximum": 4, "target": 2.0},
     {"min_instances": 1, "max_instances": 4, "target_concurrency": 2.0,
      "scale_in_cooldown_seconds": 600, "scale_out_cooldown_seconds": 60}, None),
])  # fmt: skip
def test_what_scale_changes(
    account: Account, registered: Any, request_: dict[str, Any], after: Any, count: int | None
) -> None:
    account.registered = registered
    change = scaling.plan_scale(None, deployment(), ScaleRequest(**request_))  # type: ignore[arg-type]
    assert change.count == count
    assert (change.scaling is None) is (after is None)
    if change.scaling is not None:
        assert change.scaling.before == registered
        made = change.scaling.after
        assert made == (None if after == "off" else SCALED.model_copy(update=after))


@pytest.mark.parametrize(("live", "registered", "request_", "code"), [
    (None, None, {"to": 2}, "no-such-endpoint"),
    (endpoint("Creating"), None, {"to": 2}, "endpoint-not-in-service"),
    (endpoint("Failed"), None, {"to": 2}, "endpoint-not-in-service"),
    (endpoint(), OURS, {"to": 2}, "scales-automatically"),
    (endpoint(), None, {"minimum": 1}, "missing-option"),
    (endpoint(), None, {"maximum": 2}, "missing-option"),  # without a target
    (endpoint(), OURS, {"minimum": 4}, "invalid-scaling"),
    (endpoint(), OURS, {"minimum": 0}, "invalid-scaling"),
    (endpoint(), OURS, {"maximum": MOST_COUNT + 1}, "invalid-scaling"),
])  # fmt: skip
def test_what_scale_refuses(
    account: Account, live: Any, registered: Any, request_: dict[str, Any], code: str
) -> None:
    account.live, account.registered = live, registered
    with pytest.raises(PeagleError) as raised:
        scaling.plan_scale(None, deployment(), ScaleRequest(**request_))  # type: ignore[arg-type]
    assert raised.value.code == code


@pytest.mark.parametrize("status", ["InService", "Updating"])
def test_an_endpoint_that_scales_can_be_scaled(account: Account, status: str) -> None:
    account.live = endpoint(status)
    change = scaling.plan_scale(None, deployment(), ScaleRequest(to=1))  # type: ignore[arg-type]
    assert change.count == (1 if status == "Updating" else None)


@pytest.mark.parametrize(("plan", "request_", "refused"), [
    ({}, {"to": 4}, False),
    ({}, {"to": 5}, True),
    ({"scaling": COPIES}, {"to": 12}, False),
    ({"scaling": COPIES}, {"to": 13}, True),
    ({"scaling": COPIES}, {"minimum": 2, "maximum": 12}, False),
    ({"scaling": COPIES}, {"maximum": 13}, True),
    ({"scaling": COPIES.model_copy(update={"min_copies": 0})}, {"minimum": 0}, False),
])  # fmt: skip
def test_copies_must_fit_on_the_instances(
    account: Account, plan: dict[str, Any], request_: dict[str, Any], refused: bool
) -> None:
    account.live = on_component(running=3)
    served = revision(**PER_INSTANCE).model_copy(update={"plan": a_plan(**plan)})
    record = deployment(served)
    if refused:
        with raises_code("copies-beyond-instances"):
            scaling.plan_scale(None, record, ScaleRequest(**request_))  # type: ignore[arg-type]
        return
    change = scaling.plan_scale(None, record, ScaleRequest(**request_))  # type: ignore[arg-type]
    assert change.instances == (None if change.count is None else -(-change.count // 4))
    if change.scaling and change.scaling.after:
        after = change.scaling.after
        assert after.max_instances == -(-(after.max_copies or 0) // 4)
        assert (after.min_copies, after.scales_copies) == (request_.get("minimum"), True)


def test_more_instances_move_the_end_of_a_budget(account: Account, world: World) -> None:
    record = deployment(ends_at=START + 36_000, budget_usd=14.08)
    clock = world.clock
    change = scaling.plan_scale(world.aws, record, ScaleRequest(to=2), clock)
    assert change.end == End(START + 18_000, 14.08)
    same = scaling.plan_scale(world.aws, record, ScaleRequest(to=1), clock)
    assert (same.end, same.end_text) == (None, "")


@pytest.mark.parametrize(("target", "record", "registered", "after"), [
    (planned(), deployment(), None, SCALED),
    (FIRST, deployment(), OURS, "stays"),  # of `peagle scale`
    (FIRST, deployment(planned()), OURS, None),
    (FIRST, deployment(planned()), FOREIGN, "stays"),
    (FIRST, deployment(planned()), None, "stays"),
    (FIRST, deployment(planned()), DENIED, "stays"),
    (FIRST, deployment(ELSEWHERE), OURS, None),
    (ELSEWHERE, deployment(planned()), OURS, "stays"),
])  # fmt: skip
def test_the_scaling_of_a_revision_that_serves_again(
    account: Account, world: World, monkeypatch: pytest.MonkeyPatch,
    target: Revision, record: Deployment, registered: Any, after: Any,
) -> None:  # fmt: skip
    made: list[Scaling | None] = []
    account.registered = registered
    monkeypatch.setattr(SCALING, "register", lambda context, after: made.append(after))
    scaling.return_to_scaling(DeploymentContext(world.aws, record), target)
    assert made == ([] if after == "stays" else [after])


@pytest.mark.parametrize(("change", "before", "calls"), [
    ({"scaling": ScalingChange(None, SCALED)}, "InService", ["register"]),
    ({"scaling": ScalingChange(OURS, None)}, "InService", ["register"]),
    ({"count": 2}, "InService", ["count 2", "wait"]),
    ({"count": 2}, "Updating", ["wait", "count 2", "wait"]),
    ({"count": 2, "scaling": ScalingChange(OURS, None)}, "InService",
     ["register", "count 2", "wait"]),
    ({"end": End(START, 1.0), "count": 2}, "InService", ["end", "count 2", "wait"]),
])  # fmt: skip
def test_the_order_in_which_it_is_scaled(
    account: Account, world: World, monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any], before: str, calls: list[str],
) -> None:  # fmt: skip
    made: list[str] = []
    running = [2]

    def wait(*_: Any) -> Endpoint:
        made.append("wait")
        return endpoint(running=running[0])

    def set_count(aws: Any, name: str, variant: str, count: int) -> None:
        made.append(f"count {count}")

    monkeypatch.setattr(SCALING, "register", lambda *_: made.append("register"))
    monkeypatch.setattr(scaling, "set_end", lambda *_: made.append("end"))
    monkeypatch.setattr(scaling, "wait_while_busy", wait)
    monkeypatch.setattr(sagemaker, "set_variant", set_count)
    context = DeploymentContext(world.aws, deployment(), clock=world.clock)
    request: dict[str, Any] = {"scaling": None, "count": None, **change}
    scaling.scale(context, Scale(endpoint(before), **request))
    assert made == calls
    running[0] = 1
    if "count" in change:
        with raises_code("not-scaled"):
            scaling.scale(context, Scale(endpoint(before), **request))


@pytest.mark.parametrize(("instance_type", "serves", "registered", "ends"), [
    ("ml.g6.xlarge", "first", OURS, True),
    ("ml.g6.xlarge", "first", FOREIGN, False),
    ("ml.g6.xlarge", "first", None, False),
    ("ml.g6.xlarge", "first", DENIED, False),
    ("ml.g5.xlarge", "first", OURS, False),
    ("ml.g6.xlarge", "unknown", OURS, False),
])  # fmt: skip
def test_our_scaling_ends_for_another_instance_type(
    account: Account, world: World, monkeypatch: pytest.MonkeyPatch,
    instance_type: str, serves: str, registered: Any, ends: bool,
) -> None:  # fmt: skip
    ended: list[str] = []
    account.registered = registered
    monkeypatch.setattr(autoscaling, "deregister", lambda aws, name: ended.append(name))
    context = DeploymentContext(world.aws, deployment(), clock=world.clock)
    update = revision("second", instance_type=instance_type)
    scaling.end_scaling_for_new_type(context, update, endpoint(serves=serves))
    assert ended == (["demo"] if ends else [])
