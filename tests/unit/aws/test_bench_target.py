"""A bench of an endpoint on AWS: what is known before it, and the drafts counted meanwhile, by the
engine or from the log of AWS's own image."""

import pytest

from peagle.aws import runtime
from peagle.bench.targets import open_endpoint, parse_setting, read_endpoint_counters
from peagle.catalog import load_catalog
from peagle.errors import UserError
from peagle.protocol import acceptance_length, request_body
from tests.support import raises_code
from tests.unit.aws.cloud import Engine, FakeAws
from tests.unit.aws.network import refusing
from tests.unit.aws.plans import a_plan
from tests.unit.aws.world import NAME, World

ONE, TWO = "AllTraffic/i-1", "AllTraffic/i-2"
BODY = request_body("Hello", chat=True, max_tokens=64)


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake account has neither credentials nor an address."""
    monkeypatch.setattr(FakeAws, "bearer_token", lambda *_: "sagemaker-api-key-x")
    monkeypatch.setattr(
        FakeAws, "openai_base_url", lambda _, name, component="": f"https://r/{name}/openai/v1"
    )


def test_a_deployment_has_its_price_model_and_setting(world: World) -> None:
    world.deploy(a_plan())
    target = open_endpoint(world.aws, NAME, world.record(), load_catalog())
    assert target.server.base_url == f"https://r/{NAME}/openai/v1"
    assert target.server.key == "sagemaker-api-key-x"
    assert "sagemaker-api-key" not in repr(target)
    assert target.server.chat
    assert target.usd_per_hour == 1.408
    assert target.price_source == "AWS's on-demand price on 2026-11-20"
    assert target.facts.where == "aws"
    assert target.facts.gpu_count == 1
    assert (target.setting.drafter, target.setting.k) == ("p-eagle", 5)
    assert target.read_counters() is not None
    assert read_endpoint_counters(world.aws, NAME, world.clock)[1] == "counters"


def test_an_endpoint_of_another_program_needs_the_name_of_its_model(world: World) -> None:
    world.deploy(a_plan())
    with raises_code("model", UserError) as raised:
        open_endpoint(world.aws, NAME, None, load_catalog())
    assert "--model" in raised.value.fix
    target = open_endpoint(world.aws, NAME, None, load_catalog(), "org/model")
    assert target.server.model == "org/model"
    assert target.usd_per_hour is None


@pytest.mark.parametrize(("config", "name", "k"), [
    ({"method": "eagle3", "parallel_drafting": True, "num_speculative_tokens": 7}, "p-eagle", 7),
    ({"method": "mtp", "num_speculative_tokens": 1}, "mtp", 1),
    ({"num_speculative_tokens": 3}, "draft_model", 3),
    ({"model": "a/llama-eagle-1", "num_speculative_tokens": 3}, "eagle", 3),
])  # fmt: skip
def test_a_speculative_config_is_a_setting(config: dict[str, object], name: str, k: int) -> None:
    assert parse_setting(config).drafter == name
    assert parse_setting(config).k == k


def test_only_what_is_sent_between_two_readings_counts(world: World) -> None:
    world.cloud.engine.acceptance = None
    world.cloud.streams = {ONE: Engine(3.0)}
    world.deploy(a_plan())
    read, source = read_endpoint_counters(world.aws, NAME, world.clock)
    assert source == "log"
    before = read()
    assert before is not None
    for _ in range(10):
        runtime.ask(world.aws, NAME, BODY)
    world.clock.sleep(1.0)
    after = read()
    assert after is not None
    counted = after.since(before)
    assert counted.drafts == 100
    assert acceptance_length(counted) == pytest.approx(3.0)
    assert counted.accepted_per_position == (40,) * 5
    assert read() == after, "nothing was sent since"


def test_all_instances_are_counted_together(world: World) -> None:
    world.cloud.engine.acceptance = None
    world.cloud.streams = {ONE: Engine(3.0), TWO: Engine(2.0)}
    world.deploy(a_plan(instance_count=2))
    read, _ = read_endpoint_counters(world.aws, NAME, world.clock)
    read()
    for _ in range(20):
        runtime.ask(world.aws, NAME, BODY)
    world.clock.sleep(1.0)
    after = read()
    assert after is not None
    assert acceptance_length(after) == pytest.approx(2.5)


def test_without_the_log_the_acceptance_is_unknown(world: World) -> None:
    world.cloud.engine.acceptance = None
    world.cloud.streams = {ONE: Engine(3.0)}
    world.deploy(a_plan())
    world.cloud.before = refusing("filter_log_events", "AccessDeniedException", "not authorized")
    assert read_endpoint_counters(world.aws, NAME, world.clock)[0]() is None
