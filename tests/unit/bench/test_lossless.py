"""Which differences of greedy answers rounding explains, and what a server must return."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from peagle.bench.lossless import (
    LosslessResult,
    SweepLossless,
    Transcript,
    check_lossless,
    compare_transcripts,
    first_difference,
    read_transcript,
    require_lossless,
    sweep_lossless,
    transcripts,
)
from peagle.bench.measure import BenchTarget
from peagle.bench.result import NO_SPECULATION, BenchSetting
from peagle.bench.server import PromptRefused, RefusedPrompt
from peagle.catalog import load_catalog
from peagle.errors import EngineError, NotProved, Unsupported, UserError
from peagle.protocol import Counters
from tests.support import raises_code
from tests.unit.bench.drafting import prompts_of, target_of

SURE = {7: -0.1, 8: -3.0}
TARGET = Transcript(1, (5, 7, 9), "a b c", (1, 2), (SURE, SURE, SURE))


def other(*tokens: int, text: str = "a x") -> Transcript:
    return Transcript(1, tokens, text, (1, 2))


def undecided(at: int, best: dict[int, float]) -> Transcript:
    rows = [SURE, SURE, SURE]
    rows[at] = best
    return Transcript(1, TARGET.tokens, TARGET.text, TARGET.prompt, tuple(rows))


def test_a_difference_where_the_target_is_sure_is_not_explained() -> None:
    assert first_difference(other(5, 7, 9, text="a b c"), TARGET) is None
    found = first_difference(other(5, 8, 9), TARGET)

    assert found is not None
    assert (found.position, found.target_token, found.other_token) == (1, 7, 8)
    assert (found.target_text, found.other_text) == ("b c", "x")
    assert found.gap == pytest.approx(2.9)
    assert not found.explained


@pytest.mark.parametrize(
    ("best", "token", "explained"),
    [
        ({7: -0.700, 8: -0.705, 3: -3.0}, 8, True),
        ({7: -0.7, 8: -0.7}, 8, True),
        ({7: -0.700, 8: -0.705, 3: -3.0}, 3, False),  # not one of the near ones
        ({7: -0.700, 8: -0.705}, 4, False),  # not among the best at all
        ({7: -0.700, 8: -0.711}, 8, False),
        ({7: -0.700}, 8, False),
        ({}, 8, False),
    ],
)
def test_a_near_tie_explains_only_its_own_tokens(
    best: dict[int, float], token: int, explained: bool
) -> None:
    found = first_difference(other(5, token, 1), undecided(1, best))

    assert found is not None
    assert found.explained is explained


def test_an_answer_that_ends_elsewhere_differs() -> None:
    longer = first_difference(other(5, 7, 9, 4), TARGET)
    shorter = first_difference(other(5, 7), TARGET)

    assert longer is not None
    assert shorter is not None
    assert (longer.target_token, longer.other_token, longer.gap) == (None, 4, None)
    assert (shorter.target_token, shorter.other_token) == (9, None)
    assert not longer.explained
    assert not shorter.explained


def compare(*answers: Transcript | RefusedPrompt, ended: str = "") -> LosslessResult:
    targets = [Transcript(n, (5, 7, 9), "a b c", (1, 2), (SURE,) * 3) for n in (1, 2, 3)]
    return compare_transcripts(
        prompts_of("a", "b", "c"), answers, targets,
        server="one", against="two", started="", max_tokens=9, ended=ended,
    )  # fmt: skip


def test_a_comparison_counts_prompts_and_tokens() -> None:
    same = other(5, 7, 9)
    found = compare(same, other(5, 8, 9), RefusedPrompt(3, "too long"))

    assert (found.prompts, found.tokens) == (2, 4)
    assert [one.line for one in found.refused] == [3]
    assert not found.passed
    assert found.document()["passed"] is False
    assert compare(same, same, ended="interrupted").passed
    with raises_code("not-lossless", NotProved) as raised:
        require_lossless(found)
    assert "line 2, token 1: 'x'" in raised.value.message
    with raises_code("nothing-compared", NotProved):
        require_lossless(compare(RefusedPrompt(1, "too long")))
    with raises_code("not-the-same-target", UserError):
        compare(Transcript(1, (5, 7, 9), "", (1, 2, 3)))


CHAT = {
    "choices": [{
        "message": {"content": "a"}, "token_ids": [7, 8],
        "logprobs": {"content": [
            {"top_logprobs": [{"token": "token_id:7", "logprob": -0.1},
                              {"token": "token_id:9", "logprob": -2}]},
            {"top_logprobs": [{"token": "token_id:8", "logprob": 0.0}]},
        ]},
    }],
    "prompt_token_ids": [1],
}  # fmt: skip
COMPLETION = {
    "choices": [{
        "text": "a", "token_ids": [7, 8], "prompt_token_ids": [1],
        "logprobs": {"top_logprobs": [{"token_id:7": -0.1, "token_id:9": -2}, {"token_id:8": 0}]},
    }],
}  # fmt: skip


@pytest.mark.parametrize("answer", [CHAT, COMPLETION])
def test_answers_of_chats_and_completions_are_read(answer: dict[str, Any]) -> None:
    best = ({7: -0.1, 9: -2.0}, {8: 0.0})

    assert read_transcript(answer, 4, True) == Transcript(4, (7, 8), "a", (1,), best)
    assert read_transcript(answer, 4, False) == Transcript(4, (7, 8), "a", (1,))


def test_a_server_that_returns_no_tokens_is_an_error() -> None:
    with raises_code("no-tokens", Unsupported):
        read_transcript({"choices": [{"text": "a"}]}, 1, False)
    with raises_code("no-tokens", Unsupported):
        read_transcript({"choices": [{"text": "a", "token_ids": [1]}]}, 1, True)
    with raises_code("invalid-response", EngineError):
        read_transcript({"choices": []}, 1, False)


def test_the_target_alone_is_asked_for_log_probabilities() -> None:
    bodies: list[dict[str, Any]] = []

    def ask(body: dict[str, Any]) -> dict[str, Any]:
        bodies.append(body)
        if len(bodies) == 2:
            raise PromptRefused("too long")
        return CHAT if "messages" in body else COMPLETION

    prompts = prompts_of("a", "b")
    target = target_of(ask, chat=False)
    answers = list(transcripts(prompts, target.server, "t", 9, True))
    list(transcripts(prompts, target_of(ask).server, "s", 9, False))

    assert bodies[0]["logprobs"] == 5
    assert bodies[0]["temperature"] == 0.0
    assert "logprobs" not in bodies[2]
    assert all(body["return_token_ids"] for body in bodies)
    assert answers[1] == RefusedPrompt(2, "too long")


class Writing:
    """A server that writes these tokens, with log probabilities if asked for; ``dies`` at this
    request, and drafts ``drafts`` times for each."""

    def __init__(self, *tokens: int, dies: int = 99, drafts: int = 0) -> None:
        self._tokens, self._dies, self._drafts = tokens, dies, drafts
        self.asked = 0

    def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        self.asked += 1
        if self.asked == self._dies:
            raise EngineError("the engine is gone")
        best = [{f"token_id:{one}": -0.1, "token_id:99": -4.0} for one in self._tokens]
        logprobs = {"top_logprobs": best} if "logprobs" in body else None
        texts = "".join(chr(one) for one in self._tokens)
        return {"choices": [{"text": texts, "token_ids": self._tokens, "logprobs": logprobs}]}

    def target(self, name: str = "one") -> BenchTarget:
        def count() -> Counters:
            return Counters(self.asked * self._drafts, 0, 0)

        return target_of(self.ask, count, BenchSetting("p-eagle", 3), name, chat=False)


def test_a_server_is_compared_with_the_target_alone() -> None:
    ours, alone = Writing(65, 66, drafts=2), Writing(65, 67)
    steps: list[tuple[str, int, int]] = []

    found = check_lossless(
        ours.target(), nullcontext(alone.target("two")), prompts_of("a", "b"), 9,
        progress=lambda *step: steps.append(step),
    )  # fmt: skip

    assert (found.server, found.against, found.prompts, found.tokens) == ("one", "two", 2, 2)
    assert [(one.line, one.position) for one in found.unexplained] == [(1, 1), (2, 1)]
    assert found.differences[0].gap == pytest.approx(3.9)
    assert steps[0] == ("one", 0, 2)
    assert steps[-1] == ("two", 2, 2)


def test_a_target_that_dies_leaves_what_was_compared() -> None:
    kept: list[LosslessResult] = []
    ours, alone = Writing(65, drafts=1), Writing(65, dies=2)

    with pytest.raises(EngineError):
        check_lossless(
            ours.target(), nullcontext(alone.target()), prompts_of("a", "b"), 9, keep=kept.append
        )

    assert (kept[0].prompts, kept[0].incomplete) == (1, "the engine is gone")


def test_only_a_server_that_speculates_is_compared_with_one_that_does_not() -> None:
    kept: list[LosslessResult] = []
    alone = Writing(65)
    for target in (Writing(65).target(), target_of(alone.ask, chat=False)):
        with raises_code("no-speculation", NotProved):
            check_lossless(target, nullcontext(alone.target()), prompts_of("a"), 9)
    assert not alone.asked
    ours, drafting = Writing(65, drafts=1), Writing(65, drafts=1)
    with raises_code("against-speculates", UserError):
        check_lossless(
            ours.target(), nullcontext(drafting.target()), prompts_of("a"), 9, keep=kept.append
        )
    assert not kept


def in_sweep(check: SweepLossless, opened: list[BenchSetting]) -> Any:
    """Starts engines that write ``A``; the one with K=3 writes ``B``."""

    @contextmanager
    def start(setting: BenchSetting) -> Iterator[None]:
        opened.append(setting)
        check.ask(setting, Writing(66 if setting.k == 3 else 65).target())
        yield

    return start


ONE, THREE = BenchSetting("h", 1), BenchSetting("h", 3)


def test_each_setting_of_a_sweep_is_compared_with_the_target_alone() -> None:
    check, opened = SweepLossless(prompts_of("a", "b")), list[BenchSetting]()
    start = in_sweep(check, opened)
    with start(THREE):
        pass
    check.complete((ONE, THREE), start)  # ONE was measured earlier

    assert opened == [THREE, ONE, NO_SPECULATION], "each once"
    three, one = check.results
    assert (one.server, one.against, one.prompts, one.passed) == (
        "h K=1", "no speculation", 2, True,
    )  # fmt: skip
    assert (three.server, three.passed, len(three.unexplained)) == ("h K=3", False, 2)


def test_imposed_acceptance_changes_answers_and_is_not_checked() -> None:
    check, imposed = SweepLossless(prompts_of("a")), BenchSetting("h", 3, (0.7, 0.5, 0.3))
    start = in_sweep(check, [])
    with start(imposed):
        pass
    check.complete((imposed,), start)

    assert check.results == ()


def test_the_prompts_are_those_of_the_workload_or_the_catalogue(tmp_path: Path) -> None:
    file, catalog = tmp_path / "p.jsonl", load_catalog()
    file.write_text('{"prompt": "Hi"}')

    from_file = sweep_lossless(catalog, "peagle/tiny+p-eagle", ("short-prompt", str(file)))
    default = sweep_lossless(catalog, "peagle/tiny+p-eagle", ("short-prompt",))

    assert from_file.prompts.file == str(file)
    assert len(default.prompts.prompts) == len(catalog.targets["peagle/tiny"].proof.prompts)
