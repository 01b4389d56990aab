"""The library's verbs against the account in memory: as the commands, without questions."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import peagle
from peagle.account import Account, DeploymentChange
from peagle.aws.client import Aws, Clock
from peagle.deploy.context import DeploymentContext, WillNotServe
from peagle.deploy.removal import plan_removal
from peagle.deploy.state import Resource, ResourceType
from peagle.errors import CloudError, PeagleError, Refused, UserError
from peagle.findings import error
from peagle.planning.plan import Limit
from tests.support import raises_code
from tests.unit.aws.cloud import foreign_alarm, service_error
from tests.unit.aws.network import refusing
from tests.unit.aws.plans import a_plan, another
from tests.unit.aws.scripted import ScriptedEndpoint
from tests.unit.aws.test_capacity import PRICES
from tests.unit.aws.test_wait import OUT_OF_MEMORY, logs_when
from tests.unit.aws.world import NAME, CloudClock, World

HOUR = 3600


@pytest.fixture
def world(plain_writes: None, monkeypatch: pytest.MonkeyPatch) -> World:
    """An account that a Session reaches, with a clock that passes only in pauses."""
    world = World()
    clock = CloudClock(world.cloud)
    for name in PRICES:
        world.cloud.quotas[f"{name} for endpoint usage"] = 4

    def connect(account: Account, region: str | None = None) -> Aws:
        return world.aws

    monkeypatch.setattr(Account, "aws", connect)
    monkeypatch.setattr(Clock, "now", lambda _: clock.now())
    monkeypatch.setattr(Clock, "sleep", lambda _, seconds: clock.sleep(seconds))
    return world


@pytest.fixture
def session(world: World) -> peagle.Session:
    return peagle.Session("us-east-1")


@pytest.mark.parametrize("change", [{"name": "another"}, {"region": "eu-west-1"}])
def test_a_fallback_is_of_the_same_deployment(
    world: World, session: peagle.Session, change: dict[str, Any]
) -> None:
    with raises_code("usage", UserError):
        session.deploy(a_plan(), fallbacks=(a_plan(**change),))
    assert world.cloud.calls == []


@pytest.mark.parametrize("keep_failed", [True, False])
def test_an_engine_that_will_never_serve_is_removed_unless_it_is_kept(
    world: World, session: peagle.Session, keep_failed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScriptedEndpoint, "is_busy", False)
    world.cloud.next_scripts = [[("Creating", None)] * 500]
    logs_when(world, "create_endpoint", *OUT_OF_MEMORY)
    with pytest.raises(WillNotServe) as failed:
        session.deploy(a_plan(), keep_failed=keep_failed)
    assert (NAME in world.cloud.endpoints, world.cloud.is_empty) == (keep_failed, not keep_failed)
    assert (world.record() is None, "removed" in failed.value.message) == (
        not keep_failed,
        not keep_failed,
    )


@pytest.mark.parametrize("accepted", [False, True])
def test_an_unknown_price_is_refused_unless_it_is_accepted(
    world: World, session: peagle.Session, accepted: bool
) -> None:
    plan = a_plan(instance_type="ml.p9.48xlarge", price_per_hour_usd=None)
    world.cloud.quotas["ml.p9.48xlarge for endpoint usage"] = 4
    if accepted:
        session.deploy(plan, accept_unknown_price=True)
        session.deploy(plan)  # changes nothing
        return
    with raises_code("price-unknown", Refused):
        session.deploy(plan)
    assert world.cloud.is_empty
    assert world.record() is None


def test_nothing_is_sent_for_a_plan_with_an_error(world: World, session: peagle.Session) -> None:
    wrong = a_plan(findings=(error("k", "speculation", "too large", "use less"),))
    for plan, fallbacks in ((wrong, ()), (a_plan(), (wrong,))):
        with raises_code("k", Refused):
            session.deploy(plan, fallbacks=fallbacks)
    assert world.cloud.calls == []


def rejecting(rejected: str) -> Callable[[str], None]:
    """AWS rejects this operation, which therefore has changed nothing."""

    def reject(called: str) -> None:
        if called == rejected:
            status = {"HTTPStatusCode": 400}
            raise service_error("ResourceLimitExceeded", "no", called, ResponseMetadata=status)

    return reject


def test_a_failed_creation_without_resources_leaves_no_record(
    world: World, session: peagle.Session
) -> None:
    for operation in ("create_model", "create_endpoint_config"):
        world.cloud.before = rejecting(operation)
        with pytest.raises(CloudError):
            session.deploy(a_plan())
        left = world.record()
        assert (left is None) is (operation == "create_model")
    assert [resource.type for resource in world.saved().resources] == ["Model"]


def test_two_changes_exclude_each_other(world: World, session: peagle.Session) -> None:
    session.deploy(a_plan())
    with session.changing(NAME):
        for change in (
            lambda: session.deploy(another(a_plan())),
            lambda: session.rollback(NAME),
            lambda: session.destroy(NAME),
        ):
            with raises_code("deployment-locked", UserError):
                change()
    session.destroy(NAME)


def test_destroy_removes_what_scales_and_leaves_rest(world: World, session: peagle.Session) -> None:
    session.deploy(a_plan())
    target = f"endpoint/{NAME}/variant/AllTraffic"
    world.cloud.add_scalable_target(target)
    for alarm in ("slow", f"{NAME}-wake-up"):
        world.cloud.put_alarm(alarm, **foreign_alarm(NAME))
    removed = {resource.name for resource in session.destroy(NAME)}
    assert {target, f"{NAME}-wake-up"} <= removed
    assert set(world.cloud.made_alarms) == {"slow"}


def test_destroy_without_the_permission_to_list_leftovers(
    world: World, session: peagle.Session
) -> None:
    session.deploy(a_plan())
    world.cloud.before = refusing("describe_alarms", "AccessDenied", "no", times=99)
    session.destroy(NAME)
    assert world.cloud.is_empty


def test_reap_removes_what_has_ended_and_nothing_else(
    world: World, session: peagle.Session
) -> None:
    session.deploy(a_plan(limit=Limit(ttl_seconds=HOUR)))
    (end,) = [record.ends_at for record in [world.saved()]]
    assert end
    world.cloud.now = end - 1
    assert session.find_ended(["us-east-1"]).removable == ()
    world.cloud.now = end
    search = session.find_ended(["us-east-1"])
    assert [ended.record.name for ended in search.removable] == [NAME]
    world.cloud.before = refusing("delete_endpoint", "AccessDeniedException", "no", times=99)
    (failed,) = session.reap(search.removable)
    assert isinstance(failed.error, PeagleError)
    world.cloud.before = lambda called: None
    with session.changing(NAME):
        (locked,) = session.reap(search.removable)
    assert locked.error
    assert locked.error.code == "deployment-locked"
    (done,) = session.reap(search.removable)
    assert "Endpoint" in {resource.type for resource in done.removed}
    assert world.cloud.is_empty


def test_reap_leaves_deployment_that_got_another_end(world: World, session: peagle.Session) -> None:
    session.deploy(a_plan(limit=Limit(ttl_seconds=HOUR)))
    world.cloud.now += 2 * HOUR
    search = session.find_ended(["us-east-1"])
    session.deploy(a_plan(limit=Limit(ttl_seconds=9 * HOUR)))
    (kept,) = session.reap(search.removable)
    assert (kept.removed, kept.error) == ((), None)
    assert NAME in world.cloud.endpoints


class Reporting(peagle.Session):
    """Remembers what errors have left, as a command shows it."""

    def __init__(self) -> None:
        super().__init__("us-east-1")
        self.left: list[tuple[str, list[str]]] = []

    def report_remaining(self, change: DeploymentChange, error: BaseException) -> None:
        types: list[str] = sorted({each.type for each in change.record.resources})
        self.left.append((type(error).__name__, types))


def _fail(context: DeploymentContext) -> None:
    context.change(budget_usd=5.0)
    raise CloudError("no")


def _err(context: DeploymentContext) -> None:
    raise ValueError("a bug")


def _interrupt(context: DeploymentContext) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(("verb", "continues", "reported"), [
    (_fail, True, ["CloudError"]),
    (_fail, False, []),
    (_interrupt, True, ["KeyboardInterrupt"]),
    (_err, True, ["ValueError"]),
    (lambda context: None, True, []),
])  # fmt: skip
def test_what_an_unfinished_change_leaves_is_reported_once(
    world: World, verb: Callable[[DeploymentContext], None], continues: bool, reported: list[str]
) -> None:
    session = Reporting()
    session.deploy(a_plan())
    with suppress(CloudError, KeyboardInterrupt, ValueError), session.changing(NAME) as change:
        change.run(verb, continues=continues)
        raise CloudError("of what follows a change, such as its report")
    assert [name for name, _ in session.left] == reported
    assert all("Endpoint" in types for _, types in session.left)


def test_a_change_has_the_record_that_its_last_step_left(world: World) -> None:
    session = Reporting()
    session.deploy(a_plan())
    with session.changing(NAME) as change:
        with pytest.raises(CloudError):
            change.run(_fail)
        assert change.record.budget_usd == 5.0
        assert change.record == world.saved()
        assert change.status().state == "InService"
    assert session.left == [], "the caller has handled it"


def test_a_check_that_fails_leaves_nothing_to_report(world: World) -> None:
    session = Reporting()
    world.cloud.quotas = {"ml.g5.xlarge for endpoint usage": 0}
    reviewed: list[str] = []
    with pytest.raises(Refused), session.changing(NAME, "us-east-1", creates=True) as change:
        change.prepare(a_plan(), review=lambda preflight: reviewed.append(preflight.change))
    assert (reviewed, session.left, world.record()) == (["create"], [], None)


def a_resource(kind: ResourceType, name: str) -> Resource:
    return Resource(type=kind, name=name, revision="", made=True)


TARGET = a_resource("ScalableTarget", "endpoint/x/variant/AllTraffic")
WAKES = a_resource("Alarm", "x-wake-up")
SLOW = a_resource("Alarm", "x-slow")
LOG = a_resource("LogGroup", "x")
MODEL, ENDPOINT = a_resource("Model", "x"), a_resource("Endpoint", "x")


@pytest.mark.parametrize(("recorded", "owner", "everything", "removed", "left"), [
    ((ENDPOINT,), "", False, [TARGET, WAKES], [SLOW, LOG]),
    ((ENDPOINT,), "", True, [TARGET, WAKES, SLOW, LOG], []),
    ((ENDPOINT, SLOW), "", False, [TARGET, WAKES], [LOG]),
    ((MODEL,), "", False, [TARGET, WAKES], [SLOW, LOG]),
    ((MODEL,), "a stack", True, [TARGET, WAKES, SLOW, LOG], []),
    ((MODEL,), "a stack", False, None, None),
    ((ENDPOINT,), "a stack", True, None, None),
    (None, "", False, [], [TARGET, WAKES, SLOW, LOG]),
    (None, "", True, [TARGET, WAKES, SLOW, LOG], []),
])  # fmt: skip
def test_what_is_removed_with_a_deployment(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    recorded: tuple[Resource, ...] | None,
    owner: str,
    everything: bool,
    removed: list[Resource] | None,
    left: list[Resource] | None,
) -> None:
    leftovers = (TARGET, WAKES, SLOW, LOG)
    monkeypatch.setattr("peagle.deploy.removal.find_leftovers", lambda aws, name: leftovers)
    record = None
    if recorded is not None:
        record = world.new("x").model_copy(update={"resources": recorded, "owner": owner})
    if removed is None:
        with raises_code("other-owner", Refused):
            plan_removal(world.aws, "x", record, everything)
        return
    removal = plan_removal(world.aws, "x", record, everything)
    assert (list(removal.leftovers), list(removal.left), removal.unknown) == (removed, left, "")
