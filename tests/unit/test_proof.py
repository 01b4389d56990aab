"""Speculation is proved by counters, not by answers."""

from dataclasses import replace
from threading import Barrier, Event
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle import proof as proofs
from peagle.catalog import find_pair, load_catalog
from peagle.checkpoints.entries import OWN
from peagle.errors import EngineError, NotProved
from peagle.planning import Options, make_plan
from peagle.proof import (
    InstanceProof,
    Proof,
    SecondTurn,
    StreamCounts,
    pair_in_catalogue,
    prove,
    require_passed,
)
from peagle.protocol import Counters
from tests.support import raises_code

COUNTS = st.integers(min_value=0, max_value=10**9)


def evaluate(total: Counters, floor: float | None, second: Counters | None = None) -> Proof:
    return proofs.evaluate({None: proofs.Counted(total, second)}, floor)


def test_prompts_are_sent_greedily_between_two_readings() -> None:
    readings = iter([Counters(10, 50, 20, (15, 5)), Counters(14, 70, 30, (19, 11))])
    calls: list[object] = []

    def send(body: dict[str, Any]) -> None:
        calls.append(body)

    def read() -> Counters:
        calls.append("counters")
        return next(readings)

    proof = prove(send, read, prompts=("a", "b"), chat=True, max_tokens=32, floor=2.0)
    assert calls[0] == calls[-1] == "counters"
    prompts = {body["messages"][0]["content"] for body in calls[1:-1]}  # type: ignore[index]
    assert prompts == {"a", "b"}
    assert all(body["temperature"] == 0 for body in calls[1:-1])  # type: ignore[index]
    instance = InstanceProof(None, 4, 3.5, (1.0, 1.5), passed=True)
    assert proof == Proof(3.5, 4, (1.0, 1.5), 2.0, passed=True, instances=(instance,))


@pytest.mark.parametrize(("counted", "floor", "passed"), [
    (Counters(10, 50, 15, (10, 5)), 2.5, True),
    (Counters(10, 50, 15, (10, 5)), 2.51, False),
    (Counters(10, 50, 1, (1, 0)), None, True),
    (Counters(10, 50, 0, (0, 0)), None, False),
    (Counters(10, 50, 0, (0, 0)), 1.0, False),
    (Counters(0, 0, 0, ()), None, False),
])  # fmt: skip
def test_only_accepted_drafts_at_the_floor_or_above_pass(
    counted: Counters, floor: float | None, passed: bool
) -> None:
    assert evaluate(counted, floor).passed is passed


@given(COUNTS, COUNTS, st.none() | st.floats(min_value=1, max_value=10))
def test_failed_proof_is_error_with_a_fix(drafts: int, accepted: int, floor: float | None) -> None:
    proof = evaluate(Counters(drafts, drafts, accepted, ()), floor)
    if proof.passed:
        require_passed(proof)
    else:
        with raises_code("not-proved" if drafts else "drafts-nothing", NotProved) as raised:
            require_passed(proof)
        assert raised.value.fix
        assert raised.value.exit_code == 3


@pytest.mark.parametrize(("pair", "shown"), [
    ("peagle/tiny+p-eagle", "peagle/tiny+p-eagle"),
    ("a/target+acme/head", "a/target+acme/head"),
    ("peagle/tiny", "peagle/tiny"),
    ("", None),
])  # fmt: skip
def test_the_fix_names_what_the_catalogue_has(pair: str, shown: str | None) -> None:
    rejected = evaluate(Counters(5, 25, 0), None)
    too_slow = replace(evaluate(Counters(5, 25, 1), 1.5), floor_source="break-even")
    with raises_code("not-proved", NotProved) as raised:
        require_passed(rejected, pair)
    assert raised.value.command == ("peagle", "catalog", *(("show", shown) if shown else ("list",)))
    with raises_code("not-proved", NotProved) as raised:
        require_passed(too_slow, pair)
    plan = ("peagle", "plan", shown, "--no-speculation") if shown else ()
    assert raised.value.command == plan


@pytest.mark.parametrize(("options", "pair"), [
    ({"pair": "tiny"}, "peagle/tiny+p-eagle"),
    ({"pair": "tiny", "drafter": "acme/head"}, "peagle/tiny"),
    ({"pair": "tiny", "speculation": False}, "peagle/tiny"),
    ({"pair": "gpt-oss-20b"}, "openai/gpt-oss-20b+p-eagle"),
    ({"pair": "gemma-4-31b", "drafter": "acme/head"}, None),
])  # fmt: skip
def test_plan_names_pair_that_the_catalogue_has(options: dict[str, Any], pair: str | None) -> None:
    catalog = load_catalog()
    plan = make_plan(Options(**options), catalog)
    named = pair_in_catalogue(plan.target, plan.drafter)
    assert named == (pair or named)
    assert find_pair(catalog, named).target.id == named.partition("+")[0]


@pytest.mark.parametrize("drafter", ["/tmp/h1", "./bad-head", "s3://bucket/heads/h1"])
def test_the_catalogue_has_no_head_or_target_of_the_users_own(drafter: str) -> None:
    plan = make_plan(Options(pair="tiny"), load_catalog())
    assert plan.drafter is not None
    own_head = plan.drafter.model_copy(update={"id": drafter, "name": OWN})
    own_target = plan.target.model_copy(update={"id": f"{OWN}/model"})
    assert pair_in_catalogue(plan.target, own_head) == "peagle/tiny"
    assert pair_in_catalogue(own_target, own_head) == ""
    assert pair_in_catalogue(None, None) == ""


@pytest.mark.parametrize(("second", "passed", "length", "share"), [
    (Counters(60, 300, 120, (), 1000, 700), True, 3.0, 0.7),
    (Counters(60, 300, 120), True, 3.0, None),
    (Counters(60, 300, 30, (), 1000, 0), False, 1.5, 0.0),
    (Counters(60, 300, 0), False, 1.0, None),
    (Counters(20, 100, 0), True, 1.0, None),
    (Counters(0, 0, 0), True, None, None),
])  # fmt: skip
def test_a_second_turn_below_the_floor_fails_with_the_switch_as_fix(
    second: Counters, passed: bool, length: float | None, share: float | None
) -> None:
    proof = evaluate(Counters(200, 1000, 400), 2.2, second=second)
    assert proof.passed is passed
    assert proof.second_turn is not None
    assert proof.second_turn.acceptance_length == length
    assert proof.second_turn.cached_share == share
    if not passed:
        with raises_code("second-turn-below-floor", NotProved) as raised:
            require_passed(proof, "peagle/tiny+p-eagle")
        assert "--set enable-prefix-caching=false" in raised.value.fix
        assert "--no-enable-prefix-caching" in raised.value.fix
        assert not raised.value.command, "a server of somebody else is not deployed again"


@pytest.mark.parametrize(("first", "second", "code"), [
    (Counters(60, 300, 90), Counters(60, 300, 6), "second-turn-below-floor"),
    (Counters(60, 300, 30), Counters(60, 300, 6), "not-proved"),
    (Counters(60, 300, 60), Counters(20, 100, 0), "not-proved"),
])  # fmt: skip
def test_caching_is_the_cause_only_if_the_first_turn_reaches_the_floor(
    first: Counters, second: Counters, code: str
) -> None:
    with raises_code(code, NotProved):
        require_passed(evaluate(first + second, 2.0, second=second))


def test_the_second_turn_of_a_completion_repeats_prompt_and_answer() -> None:
    bodies: list[dict[str, Any]] = []

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        bodies.append(body)
        return {"choices": [{"text": " and so on"}]}

    prove(
        answer,
        lambda: Counters(len(bodies) * 60, len(bodies) * 300, len(bodies) * 120),
        prompts=("a", "b"),
        chat=False,
        max_tokens=32,
        floor=2.0,
        two_turns=True,
    )
    prompts = [body["prompt"] for body in bodies]
    assert {*prompts[:2]} == {"a", "b"}
    assert {*prompts[2:]} == {"a and so on\n\nb", "b and so on\n\na"}
    assert all("messages" not in body for body in bodies)


def test_the_prompts_of_a_turn_run_at_the_same_time_and_turns_one_after_the_other() -> None:
    met, turns = Barrier(3, timeout=10), list[int]()

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        met.wait()  # until all three have arrived
        turns.append(len(body["messages"]))
        return {"choices": [{"message": {"content": "so"}}]}

    def read() -> Counters:
        turns.append(0)
        return Counters(len(turns), len(turns), len(turns))

    prove(answer, read, prompts="abc", chat=True, max_tokens=8, floor=None, two_turns=True)
    assert turns == [0, 1, 1, 1, 0, 3, 3, 3, 0]


def test_a_turn_without_an_answer_in_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "TURN_SECONDS", 0.01)
    never = Event()
    with raises_code("no-answer", EngineError):
        proofs.send_turn([never.wait])
    never.set()


def prove_with_an_error(code: str) -> Proof:
    """The proof of an engine that answers the second turn of the first of three prompts so."""
    answered: list[str] = []

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        if body["prompt"].startswith("a so"):
            raise EngineError("no", code=code)
        answered.append(body["prompt"])
        return {"choices": [{"text": " so"}]}

    return prove(
        answer,
        lambda: Counters(60 * len(answered), 300 * len(answered), 60 * len(answered)),
        prompts="abc",
        chat=False,
        max_tokens=8,
        floor=None,
        two_turns=True,
    )


def test_a_second_turn_without_room_leaves_the_others() -> None:
    second = prove_with_an_error("engine-rejected").second_turn
    assert second is not None
    assert (second.drafts, second.acceptance_length) == (120, 2.0)
    with raises_code("engine-failed", EngineError):
        prove_with_an_error("engine-failed")


def test_a_log_tells_the_second_turn_by_when_it_ran() -> None:
    line = (
        "Avg generation throughput: 9.0 tokens/s, Prefix cache hit rate: {}%, "
        "External prefix cache hit rate: 99.0%"
    )
    drafted = (
        "SpecDecoding metrics: Mean acceptance length: {}, Accepted: {} tokens, "
        "Drafted: 500 tokens, Per-position acceptance rate: 0.5, 0.5, 0.5, 0.5, 0.5"
    )
    counts = StreamCounts(conversations=True)
    for in_second, rate, accepted in ((False, "1.0", 200), (True, "64.0", 20)):
        counts.in_second_turn = in_second
        counts.add("AllTraffic/i-1", line.format(rate))
        counts.add("AllTraffic/i-1", drafted.format(1 + accepted / 100, accepted))
    proof = proofs.evaluate(counts.instances, 1.5, 100, 1, "log")
    assert not proof.passed
    assert proof.acceptance_length == pytest.approx(2.1)
    (second,) = [instance.second_turn for instance in proof.instances]
    assert second == proof.second_turn == SecondTurn(100, 1.2, 0.64, passed=False, source="log")


@pytest.mark.parametrize(
    ("second", "codes"),
    [
        (None, []),
        (Counters(60, 300, 120), []),
        (Counters(60, 300, 120, (), 1000, 1), []),
        (Counters(60, 300, 120, (), 1000, 0), ["cache-not-tested"]),
        (Counters(20, 100, 40, (), 1000, 0), ["cache-not-tested"]),
        (Counters(60, 300, 0, (), 1000, 0), []),
    ],
    ids=["single prompts", "unknown", "a hit", "no hits", "no hits, few drafts", "below the floor"],
)
def test_a_second_turn_without_hits_is_a_warning(second: Counters | None, codes: list[str]) -> None:
    findings = evaluate(Counters(200, 1000, 400), 2.2, second=second).findings
    assert [(finding.level, finding.code) for finding in findings] == [
        ("warning", code) for code in codes
    ]


def test_a_log_without_hit_rates_says_unknown() -> None:
    counts = StreamCounts(conversations=True, in_second_turn=True)
    counts.add("AllTraffic/i-1", "Avg generation throughput: 9.0 tokens/s, Running: 1 reqs")
    second = counts.instances["AllTraffic/i-1"].second
    assert second is not None
    assert second.cached_share is None
