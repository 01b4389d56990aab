"""How a deployment is used now, what its record keeps, and what the account adds to it.

Metrics, log lines and descriptions are values; nothing is deployed.
"""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peagle.aws import autoscaling, runtime, sagemaker
from peagle.aws.autoscaling import Bounds
from peagle.aws.client import Clock
from peagle.aws.errors import AccessDenied, NoCopyRuns
from peagle.deploy import discover, invoke, records, status
from peagle.deploy.context import DeploymentContext
from peagle.deploy.discover import current_deployment
from peagle.deploy.revisions import CANDIDATE, of_variant
from peagle.deploy.state import Deployment, Resource, ResourceType, RunningComparison
from peagle.deploy.status import LogStatistics, read_endpoint_usage
from peagle.engine.usage import Usage
from peagle.engine_log import EngineLoad
from peagle.errors import CloudError, Refused
from peagle.planning.plan import ProofPlan
from peagle.render.requests import VARIANT
from peagle.store import write_text
from tests.support import raises_code
from tests.unit.aws.plans import a_plan
from tests.unit.aws.test_deploy_rules import (
    FIRST,
    SECOND,
    THIRD,
    deployment,
    endpoint,
    of,
    revision,
)
from tests.unit.aws.world import World

NOW = 1_800_000_000.0
MINUTE = NOW - 120
METRICS = {
    "requests": {MINUTE: 30.0, MINUTE + 120: 10.0},
    "errors": {MINUTE: 2.0},
    "ttft_p50": {MINUTE: 100_000.0, MINUTE + 120: 500_000.0},
    "ttft_p90": {MINUTE + 60: 9e6},  # a minute without streams
    "streams": {MINUTE: 3.0, MINUTE + 120: 1.0},
}


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch, world: World) -> Any:
    """The usage of an endpoint with these log lines: (seconds ago, load) by stream."""
    monkeypatch.setattr(status, "metric_data", lambda *_: METRICS)

    def read(record: Deployment, live: Any, **lines: list[tuple[float, EngineLoad]]) -> Usage:
        loads = {
            stream: [(NOW - ago, load) for ago, load in listed] for stream, listed in lines.items()
        }
        monkeypatch.setattr(status, "_statistics", lambda *_: LogStatistics(loads))
        monkeypatch.setattr(sagemaker, "describe", lambda aws, name: live)
        monkeypatch.setattr(time, "time", lambda: NOW)
        return read_endpoint_usage(world.aws, record, 300.0)

    return read


def load(running: int, tokens: float, kv: float | None = 0.5) -> EngineLoad:
    return EngineLoad(tokens_per_second=tokens, running=running, waiting=1, kv_cache_share=kv)


LIVE = replace(endpoint(), created=NOW - 1000)


def test_requests_and_times_are_those_of_the_window(used: Any) -> None:
    usage = used(deployment(), LIVE, a=[(5.0, load(2, 100.0))])
    assert usage.window_seconds == 300.0
    assert usage.requests_per_minute == pytest.approx(40 * 60 / 300)
    assert usage.requests_by_minute == (30.0, 0.0, 10.0)
    assert usage.error_share == pytest.approx(2 / 40)
    assert usage.ttft_p50 == pytest.approx((3 * 0.1 + 1 * 0.5) / 4)
    assert usage.ttft_p90 is None
    assert (usage.k, usage.acceptance_floor) == (5, 2.0)


@pytest.mark.parametrize(
    ("created", "window"), [(NOW - 1000, 300.0), (NOW - 100, 100.0), (NOW, 1.0)]
)
def test_the_window_begins_with_the_endpoint(used: Any, created: float, window: float) -> None:
    assert used(deployment(), replace(LIVE, created=created)).window_seconds == window


@pytest.mark.parametrize(("lines", "running", "kv"), [
    ({}, None, None),
    ({"a": [(39.0, load(2, 9.0))]}, 2, 0.5),
    ({"a": [(40.0, load(2, 9.0))]}, 2, 0.5),
    ({"a": [(41.0, load(2, 9.0))]}, 0, 0.0),  # idle since
    ({"a": [(5.0, load(2, 9.0))], "b": [(5.0, load(3, 9.0, 0.1))]}, 5, 0.3),
    ({"a": [(5.0, load(2, 9.0, None))]}, 2, None),
])  # fmt: skip
def test_an_engine_without_a_new_line_is_idle(
    used: Any, lines: dict[str, Any], running: int | None, kv: float | None
) -> None:
    usage = used(deployment(), LIVE, **lines)
    assert usage.running == running
    assert usage.kv_cache_share == (None if kv is None else pytest.approx(kv))


def test_during_a_comparison_the_candidate_is_not_counted(used: Any) -> None:
    comparison = RunningComparison(candidate=SECOND, config="both", share=0.25)
    live = replace(LIVE, revision="both", running={VARIANT: 2, CANDIDATE: 1})
    usage = used(deployment(comparison=comparison), live, a=[(5.0, load(2, 100.0))])
    assert (usage.instances, usage.running, usage.waiting) == (2, 2, 1)
    assert usage.usd_per_hour == pytest.approx(2 * 1.408)
    assert len(usage.notes) == 1


# What is on record before and after a call.
@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch, world: World) -> DeploymentContext:
    monkeypatch.setattr(records, "save", lambda record: None)
    return DeploymentContext(world.aws, deployment(billing_since=NOW), clock=world.clock)


def rejected(error: Any) -> Any:
    error.rejected = True
    return error


@pytest.mark.parametrize(("kind", "error", "before", "made"), [
    ("Model", None, None, True),
    ("Model", Refused("no", "fix", "code"), None, None),
    ("Model", rejected(CloudError("no", "fix", "code")), None, None),
    ("Model", CloudError("lost", "fix", "code"), None, False),
    ("Model", Refused("no", "fix", "code"), True, True),
    ("Model", Refused("no", "fix", "code"), False, False),
    ("S3Objects", Refused("no", "fix", "code"), None, False),
    ("SchedulerRole", Refused("no", "fix", "code"), None, False),
    ("Alarm", Refused("no", "fix", "code"), None, None),
    ("Endpoint", Refused("no", "fix", "code"), None, None),
])  # fmt: skip
def test_what_the_record_says_after_a_call(
    context: DeploymentContext, kind: ResourceType, error: Any, before: bool | None, made: Any
) -> None:
    resource = Resource(type=kind, name="x", revision="first", keys=("k",))
    if before is not None:
        earlier = resource.model_copy(update={"made": before, "keys": ("j",)})
        context.write(context.record.with_resource(earlier))
    try:
        with context.creating(resource):
            (intended,) = context.record.of_type(kind)
            assert intended.made is bool(before)
            assert intended.keys == (("j", "k") if before is not None else ("k",))
            if error:
                raise error
    except (Refused, CloudError):
        assert error is not None
    entries = context.record.of_type(kind)
    assert [entry.made for entry in entries] == ([] if made is None else [made])
    is_forgotten = kind == "Endpoint" and made is None
    assert context.record.billing_since == (None if is_forgotten else NOW)


@pytest.mark.parametrize(("content", "reason"), [
    ("{", "JSON"), ('{"format": 3}', "name"), ("[]", ""), (json.dumps({"format": 2}), ""),
])  # fmt: skip
def test_a_damaged_record_says_what_is_wrong(own_home: Path, content: str, reason: str) -> None:
    path = records.record_path("1", "us-east-1", "demo")
    write_text(path, content)
    with raises_code("record-damaged") as raised:
        records.load_record("1", "us-east-1", "demo")
    message = str(raised.value)
    assert str(path) in message
    assert reason in message
    assert not message.rstrip().endswith("of another version:")


# What the account adds to a record.
TAGS = {sagemaker.ID_TAG: "1"}


@pytest.mark.parametrize(("record", "tagged", "complete", "previous", "added"), [
    (deployment(id="1"), deployment(id="1", previous=THIRD), False, None, 0),
    (deployment(id="1"), deployment(id="1", previous=THIRD), True, "third", 0),
    (deployment(id="1", previous=SECOND), deployment(id="1", previous=THIRD), True, "second", 0),
    (deployment(id="1"), deployment(SECOND, id="1", previous=THIRD), True, None, 0),
    (deployment(id="1"), deployment(id="2", previous=THIRD), True, None, 0),
    (deployment(id="1"), deployment(id="1", resources=(of("Model", "m", "x"),)), True, None, 1),
    (deployment(id="1"), deployment(id="2", resources=(of("Model", "m", "x"),)), True, None, 0),
])  # fmt: skip
def test_what_another_machine_has_added(
    monkeypatch: pytest.MonkeyPatch,
    record: Deployment,
    tagged: Deployment,
    complete: bool,
    previous: str | None,
    added: int,
) -> None:
    monkeypatch.setattr(discover, "find_deployment", lambda aws, name, prices: tagged)
    monkeypatch.setattr(sagemaker, "readable_tags", lambda aws, live: TAGS)
    now = current_deployment(None, "demo", record, live=LIVE, complete=complete)  # type: ignore[arg-type]
    assert now is not None
    assert (now.id, now.serving) == ("1", FIRST)
    assert (now.previous and now.previous.name) == previous
    assert len(now.resources) == added


@pytest.mark.parametrize(("keys", "added"), [(("a",), 0), (("a", "b"), 0), (("a", "c"), 1)])
def test_uploads_that_the_record_lists_under_another_folder_are_not_added(
    monkeypatch: pytest.MonkeyPatch, keys: tuple[str, ...], added: int
) -> None:
    def uploaded(name: str, keys: tuple[str, ...]) -> Deployment:
        objects = of("S3Objects", name, "first").model_copy(update={"keys": keys})
        return deployment(id="1", resources=(objects,))

    tagged = uploaded("s3://b/one/", keys)
    monkeypatch.setattr(discover, "find_deployment", lambda aws, name, prices: tagged)
    monkeypatch.setattr(sagemaker, "readable_tags", lambda aws, live: TAGS)
    record = uploaded("s3://b/", ("a", "b"))
    now = current_deployment(None, "demo", record, live=LIVE, complete=True)  # type: ignore[arg-type]
    assert now is not None
    assert len(now.resources) == 1 + added


@pytest.mark.parametrize(("tags", "serves", "tagged", "is_record"), [
    (TAGS, "first", deployment(SECOND, id="1"), True),
    (None, "first", deployment(SECOND, id="1"), True),  # may not be read
    (TAGS, "other", deployment(SECOND, id="1"), False),
    ({}, "first", deployment(SECOND, id="2"), False),
    ({sagemaker.ID_TAG: "2"}, "first", deployment(SECOND, id="2"), False),
    (TAGS, "other", deployment(None, pending=SECOND, id="1"), True),
    (TAGS, "other", None, True),
])  # fmt: skip
def test_an_endpoint_that_was_made_again_replaces_the_record(
    monkeypatch: pytest.MonkeyPatch, tags: Any, serves: str, tagged: Any, is_record: bool
) -> None:
    monkeypatch.setattr(discover, "find_deployment", lambda aws, name, prices: tagged)
    monkeypatch.setattr(sagemaker, "readable_tags", lambda aws, live: tags)
    record = deployment(id="1", resources=(of("Model", "m", "first"),))
    now = current_deployment(None, "demo", record, live=endpoint(serves=serves))  # type: ignore[arg-type]
    assert now is not None
    assert now.serving == (FIRST if is_record else SECOND)
    assert now.resources == record.resources, "what was on record is removed with the deployment"


def test_tags_that_may_not_be_read_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(*_: Any) -> None:
        raise AccessDenied("no", "ask")

    monkeypatch.setattr(discover, "find_deployment", deny)
    monkeypatch.setattr(sagemaker, "readable_tags", lambda aws, live: TAGS)
    record = deployment(id="1")
    assert current_deployment(None, "demo", record, live=LIVE, complete=True) == record  # type: ignore[arg-type]


def test_a_variant_that_does_not_run_has_no_instances() -> None:
    assert of_variant(LIVE, "other").running == {"other": 0}
    assert of_variant(replace(LIVE, running={VARIANT: 2, "other": 1}), VARIANT).instance_count == 2


@pytest.mark.parametrize("copies", [None, 4])
@pytest.mark.parametrize(("since", "live", "billing_since", "begun"), [
    (NOW - 5, LIVE, 1.0, NOW - 5),
    (None, LIVE, 1.0, LIVE.created),
    (None, None, 7.0, 7.0),
    (None, None, None, 0.0),
])  # fmt: skip
def test_the_log_is_read_from_the_creation_on(
    monkeypatch: pytest.MonkeyPatch,
    copies: int | None,
    since: float | None,
    live: Any,
    billing_since: float | None,
    begun: float,
) -> None:
    read: list[tuple[Any, ...]] = []

    class Nothing:
        def __init__(self, aws: Any, *where: Any) -> None:
            read.append(where)

        def new(self) -> list[Any]:
            return []

    monkeypatch.setattr(status, "Tail", Nothing)
    monkeypatch.setattr(sagemaker, "describe", lambda aws, name: live)
    record = deployment(revision(copies=copies), billing_since=billing_since)
    assert [*status.endpoint_log(None, record, since)] == []  # type: ignore[arg-type]
    assert read == [("demo", begun, copies is not None)]


@pytest.mark.parametrize(("uri", "has_endpoint", "refused"), [
    ("s3://a/used/", True, True),
    ("s3://a/", True, True),
    ("s3://a/used/drafter/", True, True),
    ("s3://a/use", True, True),
    ("s3://a/other/", True, False),
    ("s3://a/used/", False, False),
])  # fmt: skip
def test_weights_of_an_endpoint_are_in_use(
    own_home: Path, uri: str, has_endpoint: bool, refused: bool
) -> None:
    resources = (of("Endpoint", "demo", "first"),) if has_endpoint else ()
    serving = revision(weights={"model": "s3://a/used/"})
    records.save(deployment(serving, resources=resources))
    if refused:
        with raises_code("weights-in-use") as raised:
            records.refuse_weights_in_use([uri], "1", "it stops")
        assert "demo" in str(raised.value)
    else:
        records.refuse_weights_in_use([uri], "1", "it stops")


NO_COPY = {"RuntimeConfig": {"CurrentCopyCount": 0}}
ASLEEP = replace(LIVE, component=NO_COPY)


@pytest.mark.parametrize(("live", "record", "key"), [
    (LIVE, None, None),
    (replace(ASLEEP, status="Updating"), None, None),
    (replace(ASLEEP, component={"RuntimeConfig": {"CurrentCopyCount": 1}}), None, None),
    (ASLEEP, None, "messages"),
    (ASLEEP, deployment(), "messages"),
    (ASLEEP, deployment(FIRST.model_copy(update={"plan": a_plan(
        proof=ProofPlan(prompts=("a",), chat=False, max_tokens=1))})), "prompt"),
])  # fmt: skip
def test_only_an_endpoint_that_sleeps_is_woken(
    monkeypatch: pytest.MonkeyPatch, world: World, live: Any, record: Any, key: str | None
) -> None:
    sent: list[dict[str, Any]] = []

    def ask(aws: Any, name: str, body: dict[str, Any]) -> dict[str, Any]:
        sent.append(body)
        if len(sent) < 3:
            raise NoCopyRuns("asleep", "wait")
        return {}

    monkeypatch.setattr(runtime, "ask", ask)
    monkeypatch.setattr(autoscaling, "registered", lambda *_, **__: object())
    seconds = invoke.wake(world.aws, live, record, invoke.WakeUpOptions(clock=world.clock))
    assert seconds == (2 * invoke.RETRY_SECONDS if key else None)
    assert len(sent) == (3 if key else 0)
    assert all(key in body and body["max_tokens"] == 1 for body in sent)


@pytest.mark.parametrize(("timeout", "times"), [(0.0, 1), (5.0, 2), (5.1, 3), (10.0, 3)])
def test_waking_up_ends_with_its_time(
    monkeypatch: pytest.MonkeyPatch, world: World, timeout: float, times: int
) -> None:
    sent: list[Any] = []

    def ask(*_: Any) -> None:
        sent.append(1)
        raise NoCopyRuns("asleep", "wait")

    monkeypatch.setattr(runtime, "ask", ask)
    monkeypatch.setattr(autoscaling, "registered", lambda *_, **__: object())
    options = invoke.WakeUpOptions(timeout=timeout, clock=world.clock)
    with raises_code("not-awake"):
        invoke.wake(world.aws, ASLEEP, None, options)
    assert len(sent) == times


def by_tags(name: str = "first", **fields: Any) -> Deployment:
    """A deployment whose pair says that it is the one of the tags."""
    return deployment(revision(name, pair="by-tags"), **fields)


@pytest.mark.parametrize(("record", "tagged", "live", "is_record"), [
    (deployment(id="1"), None, LIVE, True),
    (None, by_tags(), LIVE, False),
    (deployment(id="1"), by_tags(id="1"), LIVE, True),
    (deployment(id="1"), by_tags(id="2"), LIVE, False),
    (deployment(id="1"), by_tags(id="1", owner="a CDK app"), LIVE, False),
    (deployment(id="1"), by_tags("other", id="1"), endpoint(serves="other"), False),
    (deployment(id="1"), by_tags(id="2"), None, True),
])  # fmt: skip
def test_a_row_of_list_is_the_record_unless_the_account_serves_something_else(
    monkeypatch: pytest.MonkeyPatch, record: Any, tagged: Any, live: Any, is_record: bool
) -> None:
    monkeypatch.setattr(sagemaker, "describe", lambda aws, name: live)
    monkeypatch.setattr(sagemaker, "readable_tags", lambda aws, live: {})
    row = status._row(None, record, tagged, Bounds(1, 3, 4.0))  # type: ignore[arg-type]
    assert (row.pair != "by-tags") is is_record
    assert row.instances_running == (1 if live else 0)
    assert (row.min_instances, row.max_instances, row.min_copies) == (1, 3, None)


@pytest.mark.parametrize(("record", "live", "target"), [
    (deployment(), LIVE, None),
    (deployment(previous=SECOND), LIVE, SECOND),
    (deployment(previous=SECOND), None, SECOND),
    (deployment(previous=SECOND), endpoint(serves="second"), None),
    (deployment(previous=SECOND, owner="a CDK app"), LIVE, None),
    (deployment(previous=revision("second", k=0)), LIVE, revision("second", k=0)),
])  # fmt: skip
def test_the_revision_that_status_offers_to_return_to(record: Any, live: Any, target: Any) -> None:
    shown = status._previous(record, live)
    assert (shown and shown.fingerprint) == (target and target.fingerprint)
    assert shown is None or shown.k == (target.served.k or None)


def test_a_resource_is_confirmed_only_by_aws() -> None:
    resource = FIRST.resource("Model", "m")
    assert (resource.made, resource.revision, resource.text) == (False, "first", "Model m")
    assert not deployment(resources=(resource,)).listed_resources[0].confirmed


@pytest.mark.parametrize(("stream", "copies", "is_counted"), [
    ("AllTraffic/i-1", False, True),
    ("Candidate/i-1", False, False),
    ("Candidate-2/i-1", False, True),
    ("Candidate/i-1", True, True),  # copies have one variant
])  # fmt: skip
def test_a_line_counts_unless_it_is_the_candidates(
    stream: str, copies: bool, is_counted: bool
) -> None:
    line = (
        "Engine 000: Avg prompt throughput: 9.1 tokens/s, Avg generation throughput: "
        "12.8 tokens/s, Running: 2 reqs, Waiting: 1 reqs, GPU KV cache usage: 35.2%"
    )
    event = {"logStreamName": stream, "timestamp": 5_000, "message": line}

    class Log:
        def items(self, *_: Any, **parameters: Any) -> list[dict[str, Any]]:
            assert parameters["startTime"] == 1500
            return [event]

    statistics = status._statistics(Log(), "demo", 1.5, copies, [])  # type: ignore[arg-type]
    assert [*statistics.loads] == ([stream] if is_counted else [])
    for when, load_ in statistics.loads.get(stream, ()):
        assert (when, load_.tokens_per_second, load_.running) == (5.0, 12.8, 2)


@pytest.mark.parametrize(("k", "cost", "since", "live"), [
    (1, 1.41, NOW - 3600, LIVE),
    (0, 2.82, NOW - 7200, LIVE),
    (1, 0.0, NOW + 60, LIVE),  # a clock that is behind
    (1, 0.39, None, LIVE),
    (1, None, NOW - 3600, None),
])  # fmt: skip
def test_the_cost_so_far(
    monkeypatch: pytest.MonkeyPatch, k: int, cost: float | None, since: float | None, live: Any
) -> None:
    monkeypatch.setattr(Clock, "now", lambda clock: NOW)
    record = deployment(revision(k=k), billing_since=since)
    summary = status._summary(record, live, record.current, {})
    assert (summary.cost_so_far_usd, summary.speculation) == (cost, k > 0)
    assert summary.price_per_day_usd == (None if live is None else 33.79)


@pytest.mark.parametrize(("left", "seconds"), [(90.7, 90), (0.0, 0), (-5.0, 0)])
def test_seconds_that_are_left(monkeypatch: pytest.MonkeyPatch, left: float, seconds: int) -> None:
    monkeypatch.setattr(Clock, "now", lambda clock: NOW)
    record = deployment(ends_at=NOW + left, billing_since=NOW - 7200)
    assert status._summary(record, LIVE, FIRST, {}).seconds_left == seconds
    ended = status._summary(deployment(ends_at=NOW - 3600, billing_since=NOW - 7200), None,
                            FIRST, {})  # fmt: skip
    assert ended.cost_so_far_usd == 1.41, "until its end"
