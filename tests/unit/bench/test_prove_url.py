"""Engines behind a URL are proved from their own counters, as on Kubernetes."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from peagle.bench.url_proof import prove_url
from peagle.errors import EngineError, NotProved, PeagleError, UserError
from peagle.proof import Proof
from peagle.render import plan_bytes
from tests.support import in_process, raises_code
from tests.unit.bench.simulated import StubEngine, engine_serving
from tests.unit.rendering.plans import CATALOG, plan_of

TINY = plan_of("uploaded")


class Ticking:
    """A clock whose pauses take no time."""

    def __init__(self) -> None:
        self.paused: list[float] = []

    def now(self) -> float:
        return sum(self.paused)

    def sleep(self, seconds: float) -> None:
        self.paused.append(seconds)


@pytest.fixture
def engine() -> StubEngine:
    return StubEngine()


@pytest.fixture
def url(engine: StubEngine) -> Iterator[str]:
    with engine_serving(engine) as port:
        yield f"http://127.0.0.1:{port}"


def proved(url: str, **asked: Any) -> Proof:
    return prove_url(url, CATALOG, **{"clock": Ticking(), **asked})


def test_the_plan_says_prompts_and_floor(engine: StubEngine, url: str) -> None:
    proof = proved(url, plan=TINY)
    assert (proof.acceptance_length, proof.floor, proof.floor_source) == (2.5, 2.2, "catalogue")
    assert proof.passed
    assert proof.drafts == 2 * 40 * len(TINY.proof.prompts), "of this proof only"
    assert {body["messages"][0]["content"] for body in engine.bodies} == set(TINY.proof.prompts)
    assert {body["model"] for body in engine.bodies} == {"peagle/tiny"}
    second = proof.second_turn
    assert second is not None
    assert (second.drafts, second.acceptance_length, second.passed) == (160, 2.5, True)
    assert second.cached_share is None, "the page does not count hits"
    turns = [[message["role"] for message in body["messages"]] for body in engine.bodies]
    assert turns == [["user"]] * 4 + [["user", "assistant", "user"]] * 4


def test_without_a_plan_the_served_model_says_the_prompts(engine: StubEngine, url: str) -> None:
    assert proved(f"{url}/v1").floor == 1.0
    assert {body["max_tokens"] for body in engine.bodies} == {TINY.proof.max_tokens // 2}
    engine.models = ("peagle/tiny", "publishers/space/models/peagle/tiny")
    assert proved(url, plan=TINY, model="peagle/tiny").passed
    engine.models = ("mine",)
    engine.bodies.clear()
    assert proved(url, key="k").passed
    assert {body["max_tokens"] for body in engine.bodies} == {64}
    assert "Bearer k" in engine.keys


@pytest.mark.parametrize(("options", "kind", "code"), [
    ({"refuses": True}, NotProved, "proof-prompt-rejected"),
    ({"metrics": False}, NotProved, "no-counters"),
    ({"models": ("a", "b")}, UserError, "model"),
])  # fmt: skip
def test_what_cannot_be_proved_has_its_error(
    engine: StubEngine, url: str, options: dict[str, Any], kind: type[PeagleError], code: str
) -> None:
    for name, value in options.items():
        setattr(engine, name, value)
    with raises_code(code, kind):
        proved(url, plan=TINY)


def test_a_plan_without_speculation_is_proved_by_an_answer(engine: StubEngine, url: str) -> None:
    plain = plan_of("no-speculation")
    assert proved(url, plan=plain).passed
    assert len(engine.bodies) == 1
    engine.text = ""
    with raises_code("empty-answer", NotProved):
        proved(url, plan=plain)


def test_without_prefix_caching_the_prompts_are_sent_alone(engine: StubEngine, url: str) -> None:
    off = {**TINY.environment, "SM_VLLM_NO_ENABLE_PREFIX_CACHING": "true"}
    assert proved(url, plan=TINY.model_copy(update={"environment": off})).second_turn is None
    assert {len(body["messages"]) for body in engine.bodies} == {1}


def test_every_address_of_the_host_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host name with two addresses, each of which is an engine."""
    first, other, resolve = StubEngine(), StubEngine(), socket.getaddrinfo

    def addresses(host: str, port: int, *more: Any, **kind: Any) -> list[Any]:
        if host != "gate":
            return resolve(host, port, *more, **kind)
        return [(socket.AF_INET, 1, 6, "", (f"127.0.0.{n}", port)) for n in (2, 1)]

    monkeypatch.setattr("peagle.bench.url_proof.socket.getaddrinfo", addresses)
    with engine_serving(first) as port, engine_serving(other, "127.0.0.2", port):
        proof = proved(f"http://gate:{port}/v1", plan=TINY, instances=2)
        passed = [(each.stream, each.passed) for each in proof.instances]
        assert passed == [("127.0.0.1", True), ("127.0.0.2", True)]
        assert proof.source == "counters"
        assert all((first.bodies, other.bodies))
        other.accepted = 20
        assert not proved(f"http://gate:{port}/v1", plan=TINY).passed
        with raises_code("engines-missing", NotProved) as raised:
            proved(f"http://gate:{port}/v1", plan=TINY, instances=3, wait_seconds=9)
        assert "2 of 3" in raised.value.message


def test_it_waits_until_the_engines_answer(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve, refusals = socket.getaddrinfo, [1, 2]

    def late(*asked: Any, **kind: Any) -> Any:
        if refusals:
            refusals.pop()
            raise socket.gaierror(-2, "Name or service not known")
        return resolve(*asked, **kind)

    monkeypatch.setattr("peagle.bench.url_proof.socket.getaddrinfo", late)
    clock = Ticking()
    assert proved(url, plan=TINY, wait_seconds=60, clock=clock).passed
    assert clock.paused == [5.0, 5.0]
    refusals += [1]
    with raises_code("no-answer", EngineError):
        proved(url, plan=TINY)


def test_command_ends_with_3_below_the_floor(engine: StubEngine, url: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_bytes(plan_bytes(TINY))
    passed = in_process("prove", "--url", url, "--plan", str(plan), "--json")
    engine.accepted = 30
    failed = in_process("prove", "--url", url, "--plan", str(plan))
    engine.drafts = 0
    silent = in_process("prove", "--url", url)
    assert (passed.code, passed.document["acceptance_length"]) == (0, 2.5)
    assert (failed.code, silent.code) == (3, 3)
    assert in_process("prove", "mine", "--wait", "1m").code == 2
    assert in_process("prove", "--url", "http://127.0.0.1:1/v1").code == 4
