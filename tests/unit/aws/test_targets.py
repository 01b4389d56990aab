"""Drafts of an endpoint of AWS's own image, counted from its log while a bench sends prompts."""

from __future__ import annotations

import pytest

from peagle.aws import runtime
from peagle.bench.targets import LogCounters, counters_of_endpoint
from peagle.errors import EngineError
from peagle.protocol import acceptance_length, request_body
from tests.unit.aws.cloud import Engine, service_error
from tests.unit.aws.plans import a_plan
from tests.unit.aws.world import NAME, World

ONE, TWO = "AllTraffic/i-1", "AllTraffic/i-2"
BODY = request_body("Hello", chat=True, max_tokens=64)


def test_only_what_is_sent_between_two_readings_counts(world: World) -> None:
    world.cloud.engine.acceptance = None
    world.cloud.streams = {ONE: Engine(3.0)}
    world.deploy(a_plan())
    counters = LogCounters(world.aws, NAME, world.clock)

    before = counters.read()
    for _ in range(10):
        runtime.ask(world.aws, NAME, BODY)
    world.clock.sleep(1.0)
    after = counters.read()

    counted = after.since(before)
    assert counted.drafts == 100
    assert acceptance_length(counted) == pytest.approx(3.0)
    assert counted.accepted_per_position == (40,) * 5
    assert counters.read() == after, "nothing was sent since"


def test_all_instances_are_counted_together(world: World) -> None:
    world.cloud.engine.acceptance = None
    world.cloud.streams = {ONE: Engine(3.0), TWO: Engine(2.0)}
    world.deploy(a_plan(instance_count=2))
    counters = LogCounters(world.aws, NAME, world.clock)
    counters.read()

    for _ in range(20):
        runtime.ask(world.aws, NAME, BODY)
    world.clock.sleep(1.0)

    assert acceptance_length(counters.read()) == pytest.approx(2.5)


def test_an_endpoint_that_does_not_exist_is_an_error(world: World) -> None:
    with pytest.raises(EngineError, match="does not exist"):
        LogCounters(world.aws, "gone", world.clock)


def test_counters_come_from_the_engine_where_it_exposes_them(world: World) -> None:
    world.deploy(a_plan())

    assert counters_of_endpoint(world.aws, NAME, world.clock).source == "counters"


def test_counters_come_from_the_log_of_other_images(world: World) -> None:
    world.cloud.engine.acceptance = None
    world.cloud.streams = {ONE: Engine(3.0)}
    world.deploy(a_plan())

    assert counters_of_endpoint(world.aws, NAME, world.clock).source == "log"


def test_without_the_log_the_acceptance_is_unknown(world: World) -> None:
    world.cloud.engine.acceptance = None
    world.cloud.streams = {ONE: Engine(3.0)}
    world.deploy(a_plan())

    def deny(operation: str) -> None:
        if operation == "filter_log_events":
            raise service_error("AccessDeniedException", "not authorized", "FilterLogEvents")

    world.cloud.before = deny

    assert counters_of_endpoint(world.aws, NAME, world.clock).read() is None
