"""Proof of an endpoint of the account: from counters, or from the log of every instance."""

from typing import Any

import pytest

from peagle.catalog import load_catalog
from peagle.deploy.proving import prove
from peagle.deploy.status import deployment_status
from peagle.errors import CloudError, NotFound, NotProved, OutOfRange
from peagle.planning.plan import Plan
from peagle.proof import Proof, require_passed
from peagle.text import plain
from tests.support import raises_code
from tests.unit.aws.cloud import Engine
from tests.unit.aws.network import refusing
from tests.unit.aws.plans import a_plan
from tests.unit.aws.world import NAME, World

ONE, TWO = "AllTraffic/i-1", "AllTraffic/i-2"


def from_the_log(**changes: Any) -> Plan:
    plan = a_plan(**changes)
    return plan.model_copy(update={"proof": plan.proof.model_copy(update={"source": "log"})})


@pytest.fixture
def logging(world: World) -> World:
    """Two engines, which write their statistics to their own log streams."""
    world.cloud.engine.acceptance = None
    world.cloud.streams = {ONE: Engine(3.0), TWO: Engine(2.6)}
    return world


def proved(world: World) -> Proof:
    record = world.saved()
    assert record.serving.proof is not None
    return record.serving.proof


def test_every_instance_is_proved_by_its_own_log_stream(logging: World) -> None:
    logging.deploy(from_the_log(instance_count=2))
    proof = proved(logging)
    assert (proof.source, proof.passed) == ("log", True)
    assert {each.stream: each.acceptance_length for each in proof.instances} == {ONE: 3.0, TWO: 2.6}
    assert all(each.drafts >= 100 for each in proof.instances)
    record = logging.saved()
    shown = plain(deployment_status(logging.aws, record))["proof"]
    assert [instance["stream"] for instance in shown["instances"]] == [ONE, TWO]
    assert shown["source"] == "log"


def test_an_instance_that_drafts_nothing_fails_the_proof(logging: World) -> None:
    logging.cloud.streams[TWO].acceptance = None
    with raises_code("drafts-nothing", NotProved) as failed:
        logging.deploy(from_the_log(instance_count=2))
    assert TWO in failed.value.message
    assert len(logging.cloud.streams[TWO].prompts) < 20, "no prompt can change that"


def test_an_engine_without_statistics_is_not_proved(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "statistics", lambda engine: ["no statistics"])
    world.cloud.engine.acceptance = None
    with raises_code("no-statistics", NotProved) as failed:
        world.deploy(from_the_log())
    assert failed.value.command == ("peagle", "logs", NAME)


def test_lines_before_the_first_prompt_do_not_count(logging: World) -> None:
    del logging.cloud.streams[TWO]
    logging.deploy(from_the_log())
    for line in 30 * Engine(1.1).statistics():
        logging.cloud.write_log(line)
    logging.cloud.now += 60
    logging.prove()
    assert proved(logging).acceptance_length == 3.0


@pytest.mark.thorough
def test_streams_of_the_earlier_revision_do_not_count(logging: World) -> None:
    """The old instance still answers and logs for a while after the switch."""
    del logging.cloud.streams[TWO]
    logging.deploy(from_the_log())
    logging.cloud.now += 600
    logging.cloud.streams[TWO] = Engine(1.2)
    old = logging.cloud.streams.pop(ONE)
    logging.cloud.streams[ONE] = old
    with raises_code("not-proved", NotProved) as failed:
        logging.deploy(from_the_log(environment={"SM_VLLM_K": "7"}), keep_unproved=True)
    assert "1.20" in failed.value.message
    record = logging.saved()
    assert [instance.stream for instance in record.current.proof.instances] == [TWO]


def test_without_permission_to_read_the_log_the_error_names_the_action(logging: World) -> None:
    logging.cloud.before = refusing("filter_log_events", "AccessDeniedException", "not authorized")
    with pytest.raises(CloudError) as failed:
        logging.deploy(from_the_log())
    assert failed.value.exit_code == 4
    assert "logs:FilterLogEvents" in failed.value.fix
    assert not logging.cloud.streams[ONE].prompts, "before any prompt"


def test_any_endpoint_is_proved_with_the_prompts_of_its_pair(logging: World) -> None:
    """One without a record; its pair is in the tag."""
    logging.deploy(from_the_log(instance_count=2))
    catalog = load_catalog()
    target = catalog.targets["peagle/tiny"]
    tags = logging.cloud.tags[logging.cloud.endpoints[NAME].arn]
    (model,) = logging.cloud.models.values()
    model["PrimaryContainer"]["Environment"]["SM_VLLM_SPECULATIVE_CONFIG"] = (
        '{"method": "eagle3", "num_speculative_tokens": 5, "parallel_drafting": true}'
    )
    logging.cloud.engine.prompts.clear()
    tags["peagle:pair"] = "peagle/tiny+p-eagle"
    proof, _ = prove(logging.aws, NAME, catalog, clock=logging.clock)
    tags["peagle:pair"] = "unknown/model+head"
    unknown, _ = prove(logging.aws, NAME, catalog, clock=logging.clock)
    (drafter,) = [each for each in target.drafters if each.name == "p-eagle"]
    assert proof.floor == drafter.acceptance_floor
    assert unknown.floor == 1.0
    require_passed(unknown)
    sent = {body["messages"][0]["content"] for body in logging.cloud.streams[ONE].prompts}
    assert sent & set(target.proof.prompts)


def test_a_floor_of_an_endpoint_that_does_not_speculate_fails(world: World) -> None:
    world.deploy(a_plan(speculation=None, drafter=None))
    assert world.prove().passed
    with raises_code("no-speculation", NotProved):
        world.prove(floor=1.5)


def test_no_acceptance_length_reaches_a_floor_above_k_and_one(world: World) -> None:
    world.deploy(a_plan())
    with raises_code("out-of-range", OutOfRange):
        world.prove(floor=6.1)


def test_only_an_endpoint_in_service_is_proved(world: World) -> None:
    with raises_code("no-such-endpoint", NotFound):
        prove(world.aws, NAME, load_catalog())
    world.deploy(a_plan())
    world.cloud.endpoints[NAME].script = [("Updating", None)] * 9
    with raises_code("endpoint-not-in-service"):
        world.prove()
