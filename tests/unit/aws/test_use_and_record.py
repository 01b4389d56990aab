"""How a deployment is used now, what its record keeps, and what the account adds to it.

Metrics, log lines and descriptions are values; nothing is deployed.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peagle.aws import sagemaker
from peagle.aws.errors import AccessDenied
from peagle.deploy import discover, records, status
from peagle.deploy.context import DeploymentContext
from peagle.deploy.discover import current_deployment
from peagle.deploy.revisions import CANDIDATE
from peagle.deploy.state import Deployment, Resource, ResourceType, RunningComparison
from peagle.deploy.status import LogStatistics, read_endpoint_usage
from peagle.engine.usage import Usage
from peagle.engine_log import EngineLoad
from peagle.errors import CloudError, Refused
from peagle.render.requests import VARIANT
from peagle.store import write_text
from tests.support import raises_code
from tests.unit.aws.test_deploy_rules import FIRST, SECOND, THIRD, deployment, endpoint, of
from tests.unit.aws.world import World

NOW = 1_800_000_000.0
MINUTE = NOW - 120
METRICS = {
    "requests": {MINUTE: 30.0, MINUTE + 120: 10.0},
    "errors": {MINUTE: 2.0},
    "ttft_p50": {MINUTE: 100_000.0, MINUTE + 120: 500_000.0},
    "ttft_p90": {},
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
        both = {VARIANT: LogStatistics(loads), CANDIDATE: LogStatistics()}
        monkeypatch.setattr(status, "_statistics", lambda *_: both)
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


@pytest.mark.parametrize(
    ("lines", "running", "kv"),
    [
        ({}, None, None),
        ({"a": [(39.0, load(2, 9.0))]}, 2, 0.5),
        ({"a": [(40.0, load(2, 9.0))]}, 2, 0.5),
        ({"a": [(41.0, load(2, 9.0))]}, 0, 0.0),  # idle since
        ({"a": [(5.0, load(2, 9.0))], "b": [(5.0, load(3, 9.0, 0.1))]}, 5, 0.3),
        ({"a": [(5.0, load(2, 9.0, None))]}, 2, None),
    ],
)
def test_an_engine_without_a_new_line_is_idle(
    used: Any, lines: dict[str, Any], running: int | None, kv: float | None
) -> None:
    usage = used(deployment(), LIVE, **lines)
    assert usage.running == running
    assert usage.kv_cache_share == (None if kv is None else pytest.approx(kv))


def test_during_a_comparison_each_variant_has_its_share(used: Any) -> None:
    comparison = RunningComparison(candidate=SECOND, config="both", share=0.25)
    live = replace(LIVE, revision="both", running={VARIANT: 2, CANDIDATE: 1})
    usage = used(deployment(comparison=comparison), live, a=[(5.0, load(2, 100.0))])
    assert [(each.variant, each.share, each.instances) for each in usage.variants] == [
        (VARIANT, 0.75, 2),
        (CANDIDATE, 0.25, 1),
    ]
    assert usage.requests_per_minute == pytest.approx(2 * 40 * 60 / 300)
    assert (usage.running, usage.waiting) == (2, 1)
    assert usage.usd_per_hour == pytest.approx(3 * 1.408)
    assert usage.ttft_p50 is None


# What is on record before and after a call.
@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch, world: World) -> DeploymentContext:
    monkeypatch.setattr(records, "save", lambda record: None)
    return DeploymentContext(world.aws, deployment(billing_since=NOW), clock=world.clock)


def rejected(error: Any) -> Any:
    error.rejected = True
    return error


@pytest.mark.parametrize(
    ("kind", "error", "before", "made"),
    [
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
    ],
)
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


@pytest.mark.parametrize(
    ("content", "reason"),
    [("{", "JSON"), ('{"format": 3}', "name"), ("[]", ""), (json.dumps({"format": 2}), "")],
)
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


@pytest.mark.parametrize(
    ("record", "tagged", "complete", "previous", "added"),
    [
        (deployment(id="1"), deployment(id="1", previous=THIRD), False, None, 0),
        (deployment(id="1"), deployment(id="1", previous=THIRD), True, "third", 0),
        (deployment(id="1", previous=SECOND), deployment(id="1", previous=THIRD), True,
         "second", 0),
        (deployment(id="1"), deployment(SECOND, id="1", previous=THIRD), True, None, 0),
        (deployment(id="1"), deployment(id="2", previous=THIRD), True, None, 0),
        (deployment(id="1"), deployment(id="1", resources=(of("Model", "m", "x"),)), True, None, 1),
        (deployment(id="1"), deployment(id="2", resources=(of("Model", "m", "x"),)), True, None, 0),
    ],
)  # fmt: skip
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


@pytest.mark.parametrize(
    ("tags", "serves", "tagged", "is_record"),
    [
        (TAGS, "first", deployment(SECOND, id="1"), True),
        (None, "first", deployment(SECOND, id="1"), True),  # may not be read
        (TAGS, "other", deployment(SECOND, id="1"), False),
        ({}, "first", deployment(SECOND, id="2"), False),
        ({sagemaker.ID_TAG: "2"}, "first", deployment(SECOND, id="2"), False),
        (TAGS, "other", deployment(None, pending=SECOND, id="1"), True),
        (TAGS, "other", None, True),
    ],
)
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
