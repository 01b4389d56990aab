"""Which differences of greedy answers rounding explains, and what a server must return."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peagle.bench.acceptance import (
    AcceptanceRequest,
    AcceptanceResult,
    acceptance_bytes,
    compute_rates,
    measure_acceptance,
    read_acceptance,
    require_none_refused,
    with_text_acceptance,
)
from peagle.bench.lossless import (
    LosslessResult,
    SweepLossless,
    Transcript,
    check_lossless,
    compare_transcripts,
    first_difference,
    read_transcript,
    require_lossless,
    transcripts,
)
from peagle.bench.result import NO_SPECULATION, BenchSetting, Interval
from peagle.bench.targets import BenchTarget, PromptRefused, RefusedPrompt
from peagle.catalog import find_pair, load_catalog
from peagle.errors import EngineError, NotProved, PeagleError, Unsupported, UserError
from peagle.protocol import Counters
from peagle.render.requests import tag_value
from peagle.speed.acceptance import find_acceptance
from peagle.text import plain
from tests.support import raises_code
from tests.unit.bench.drafting import Drafting, prompts_of, target_of

SURE = {7: -0.1, 8: -3.0}
CATALOG = load_catalog()


@pytest.fixture
def prompt_file(tmp_path: Path) -> str:
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "a"}\n{"prompt": "b"}')
    return str(file)


def target(line: int = 1, second: dict[int, float] = SURE) -> Transcript:
    return Transcript(line, (5, 7, 9), "a b c", (1, 2), (SURE, second, SURE))


def other(*tokens: int, text: str = "a x") -> Transcript:
    return Transcript(1, tokens, text, (1, 2))


@pytest.mark.parametrize(("best", "tokens", "tokens_there", "explained"), [
    (SURE, (5, 8, 9), (7, 8), False),
    ({7: -0.700, 8: -0.705, 3: -3.0}, (5, 8, 1), (7, 8), True),
    ({7: -0.7, 8: -0.7}, (5, 8, 1), (7, 8), True),
    ({7: -0.700, 8: -0.705, 3: -3.0}, (5, 3), (7, 3), False),  # not one of the near ones
    ({7: -0.700, 8: -0.705}, (5, 4), (7, 4), False),  # not among the best at all
    ({7: -0.700, 8: -0.711}, (5, 8), (7, 8), False),
    ({}, (5, 8), (7, 8), False),
    (SURE, (5, 7, 9, 4), (None, 4), False),
    (SURE, (5, 7), (9, None), False),
])  # fmt: skip
def test_only_a_near_tie_of_the_target_explains_a_difference(
    best: dict[int, float], tokens: tuple[int, ...], tokens_there: tuple[Any, Any], explained: bool
) -> None:
    difference = first_difference(other(*tokens), target(1, best))
    assert difference is not None
    assert (difference.target_token, difference.other_token) == tokens_there
    assert difference.explained is explained
    assert (difference.target_text, difference.other_text) == ("b c", "x")
    assert first_difference(other(5, 7, 9), target()) is None


def compare(*answers: Transcript | RefusedPrompt) -> LosslessResult:
    alone = [target(1), target(2), target(3)]
    return compare_transcripts(prompts_of("a", "b", "c"), answers, alone, "one", "two", "", 9)


def test_a_comparison_counts_prompts_and_tokens() -> None:
    same = other(5, 7, 9)
    result = compare(same, other(5, 8, 9), RefusedPrompt(3, "too long"))
    assert (result.prompts, result.tokens, result.refused[0].line) == (2, 4, 3)
    assert result.passed is False
    assert compare(same, same).passed
    with raises_code("not-lossless", NotProved) as raised:
        require_lossless(result)
    assert "line 2, token 1: 'x'" in raised.value.message
    with raises_code("nothing-compared", NotProved):
        require_lossless(compare(RefusedPrompt(1, "too long")))
    with raises_code("wrong-against", UserError):
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


def test_the_target_alone_is_asked_for_log_probabilities() -> None:
    bodies: list[dict[str, Any]] = []

    def ask(body: dict[str, Any]) -> dict[str, Any]:
        bodies.append(body)
        if len(bodies) == 2:
            raise PromptRefused("too long")
        return CHAT if "messages" in body else COMPLETION

    prompts, best = prompts_of("a", "b"), ({7: -0.1, 9: -2.0}, {8: 0.0})
    answers = list(transcripts(prompts, target_of(ask, chat=False).server, "t", 9, True))
    chats = list(transcripts(prompts, target_of(ask).server, "s", 9, False))
    assert answers == [Transcript(1, (7, 8), "a", (1,), best), RefusedPrompt(2, "too long")]
    assert chats[0] == Transcript(1, (7, 8), "a", (1,))
    assert read_transcript(CHAT, 1, True) == answers[0]
    assert (bodies[0]["logprobs"], bodies[0]["temperature"]) == (5, 0.0)
    assert "logprobs" not in bodies[2]
    assert all(body["return_token_ids"] for body in bodies)


@pytest.mark.parametrize(("choices", "is_target", "code", "kind"), [
    ([{"text": "a"}], False, "no-tokens", Unsupported),
    ([{"text": "a", "token_ids": [1]}], True, "no-tokens", Unsupported),
    ([], False, "invalid-response", EngineError),
])  # fmt: skip
def test_a_server_that_returns_no_tokens_is_an_error(
    choices: list[Any], is_target: bool, code: str, kind: type[PeagleError]
) -> None:
    with raises_code(code, kind):
        read_transcript({"choices": choices}, 1, is_target)


class Writing:
    """A server that writes these tokens, with log probabilities if asked for, and drafts ``drafts``
    times for each request."""

    def __init__(self, *tokens: int, drafts: int = 0) -> None:
        self._tokens, self._drafts = tokens, drafts
        self.asked = 0

    def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        self.asked += 1
        best = [{f"token_id:{token}": -0.1, "token_id:99": -4.0} for token in self._tokens]
        logprobs = {"top_logprobs": best} if "logprobs" in body else None
        texts = "".join(map(chr, self._tokens))
        return {"choices": [{"text": texts, "token_ids": self._tokens, "logprobs": logprobs}]}

    def target(self, name: str = "one") -> BenchTarget:
        def count() -> Counters:
            return Counters(self.asked * self._drafts, 0, 0)

        return target_of(self.ask, count, BenchSetting("p-eagle", 3), name, chat=False)


def test_a_server_is_compared_with_the_target_alone() -> None:
    ours, alone = Writing(65, 66, drafts=2), Writing(65, 67)
    result = check_lossless(
        ours.target(), nullcontext(alone.target("two")), prompts_of("a", "b"), 9
    )
    assert (result.server, result.against, result.prompts, result.tokens) == ("one", "two", 2, 2)
    assert [(each.line, each.position) for each in result.unexplained] == [(1, 1), (2, 1)]
    assert result.differences[0].gap == pytest.approx(3.9)


def test_only_a_server_that_speculates_is_compared_with_one_that_does_not() -> None:
    alone, drafting = Writing(65), Writing(65, drafts=1)
    for silent in (Writing(65).target(), target_of(alone.ask, chat=False)):
        with raises_code("no-speculation", NotProved):
            check_lossless(silent, nullcontext(alone.target()), prompts_of("a"), 9)
    assert not alone.asked
    with raises_code("wrong-against", UserError):
        check_lossless(drafting.target(), nullcontext(drafting.target()), prompts_of("a"), 9)


def test_each_setting_of_a_sweep_is_compared_with_the_target_alone(prompt_file: str) -> None:
    check, opened = SweepLossless(CATALOG, "", (prompt_file,)), list[BenchSetting]()
    k1, three, imposed = (BenchSetting("h", k, rates) for k, rates in
                           ((1, ()), (3, ()), (3, (0.7, 0.5, 0.3))))  # fmt: skip

    @contextmanager
    def start(setting: BenchSetting) -> Iterator[None]:
        """The engine with K=3 writes ``B``, the others ``A``."""
        opened.append(setting)
        check.ask(setting, Writing(66 if setting.k == 3 else 65).target())
        yield

    for setting in (three, imposed):
        with start(setting):
            pass
    check.complete((k1, three, imposed), start)  # one was measured earlier
    assert opened == [three, imposed, k1, NO_SPECULATION], "each once"
    first, second = check.results
    assert (second.server, second.against, second.prompts) == ("h K=1", "no speculation", 2)
    assert (first.server, first.passed, second.passed) == ("h K=3", False, True)


# Acceptance by domain from counters, and its file.
PAIR, FULL = "gpt-oss-20b+p-eagle", "openai/gpt-oss-20b+amazon/GPT-OSS-20B-P-EAGLE"


def measure(server: Drafting, *texts: str, **more: Any) -> AcceptanceResult:
    request = AcceptanceRequest(concurrency=more.pop("concurrency", 4))
    return measure_acceptance(server.target(), prompts_of(*texts), request, **more)


def test_every_domain_has_its_own_acceptance() -> None:
    result = measure(Drafting(), "code 1", "chat 1", "code 2", "chat 2", "chat 3")
    code, chat = result.domains
    assert (code.domain, code.prompts, code.output_tokens) == ("code", 2, 80)
    assert (code.acceptance.length, code.acceptance.per_position) == (4.0, (1.0, 1.0, 1.0))
    assert (chat.acceptance.length, chat.acceptance.drafts, chat.is_reliable) == (2.0, 60, False)
    assert chat.acceptance.per_position == pytest.approx((0.7, 0.2, 0.1))
    assert chat.interval == Interval(2.0, 2.0, 2.0)
    assert result.total.acceptance.length == 1 + (60 + 60) / (20 + 60)
    assert result.total.interval.low < 2.5 < result.total.interval.high <= 4.0
    assert result.k == 3
    assert measure(Drafting(), *(f"code {n}" for n in range(45))).total.groups == 12
    target = Drafting().target(0.7, 0.4, 0.2)
    imposed = measure_acceptance(target, prompts_of("chat"), AcceptanceRequest())
    assert (imposed.total.acceptance.basis, chat.acceptance.basis) == ("imposed", "measured")


def test_refused_prompts_are_left_out_and_named() -> None:
    result = measure(Drafting(), "code 1", "too long", "chat")
    assert ([prompt.line for prompt in result.refused], result.total.prompts) == ([2], 2)
    with raises_code("prompts", UserError) as raised:
        require_none_refused(result)
    assert raised.value.message.startswith("p.jsonl, line 2: ")
    require_none_refused(measure(Drafting(), "chat"))
    with raises_code("prompts", UserError) as raised:
        measure(Drafting(), "too long", "too long")
    assert raised.value.message.startswith("p.jsonl, line 1 (and 1 more): ")


def test_a_server_that_does_not_speculate_or_count_is_an_error() -> None:
    uncounted = target_of(Drafting().ask, setting=BenchSetting("p-eagle", 3))
    with raises_code("no-counters", Unsupported):
        measure_acceptance(uncounted, prompts_of("a"), AcceptanceRequest())
    server = Drafting()
    target = target_of(server.ask, lambda: Counters(0, 0, 0))
    with raises_code("no-speculation", NotProved):
        measure_acceptance(target, prompts_of("a", "b"), AcceptanceRequest())
    assert len(server.bodies) == 1


@pytest.fixture(scope="module")
def measured() -> AcceptanceResult:
    texts = [f"{kind} {n}" for kind in ("code", "chat") for n in range(10)]
    result = measure(Drafting(), *texts)
    return replace(result, server=replace(result.server, pair=FULL))


def saved(folder: Path, result: AcceptanceResult) -> Path:
    file = folder / "acceptance.json"
    file.write_bytes(acceptance_bytes(result))
    return file


def test_a_result_is_read_again(measured: AcceptanceResult, tmp_path: Path) -> None:
    again = read_acceptance(saved(tmp_path, measured))
    assert again == measured
    assert compute_rates(again, 3, "code") == (1.0, 1.0, 1.0)
    assert compute_rates(again, 2, "chat") == (0.7, 0.2)
    for k, domain in ((4, None), (2, "chats")):
        with raises_code("acceptance-file", UserError):
            compute_rates(again, k, domain)


@pytest.mark.parametrize(("text", "code"), [
    (None, "acceptance-file"), ("another format", "acceptance-file"),
    *((text, "record-damaged") for text in ("", "{}", "[]", '{"format": 1', "NaN", '{"k": "x"}')),
])  # fmt: skip
def test_other_files_are_refused(
    measured: AcceptanceResult, tmp_path: Path, text: str | None, code: str
) -> None:
    file = tmp_path / "a.json"
    if text is not None:
        other = json.dumps(plain(measured) | {"format": 2})
        file.write_text(other if text == "another format" else text)
    with raises_code(code, UserError):
        read_acceptance(file)


@pytest.mark.parametrize(
    ("domain", "lengths"),
    [
        (None, (1.8, 2.267, 2.667)),
        ("all domains", (1.8, 2.267, 2.667)),
        ("chat", (1.7, 1.9, 2.0)),
    ],
)
def test_it_is_preferred_to_all_other_acceptance(
    measured: AcceptanceResult, tmp_path: Path, domain: str | None, lengths: tuple[float, ...]
) -> None:
    catalog = with_text_acceptance(CATALOG, "gpt-oss-20b", saved(tmp_path, measured), domain)
    drafter = find_pair(catalog, PAIR).drafter
    runs = catalog.speeds["openai/gpt-oss-20b"]
    preferred = [find_acceptance(drafter, k, runs, {"p-eagle"}, decay=0.8) for k in (1, 2, 3)]
    assert [each.length for each in preferred] == pytest.approx(list(lengths), abs=2e-3)
    assert {each.basis for each in preferred} == {"measured"}
    assert "drafts on p.jsonl" in preferred[0].source
    assert not find_pair(CATALOG, PAIR).drafter.on_text, "the catalogue itself is unchanged"
    others = [each for each in find_pair(catalog, PAIR).target.drafters if each != drafter]
    assert {each.on_text for each in others} == {()}


def test_pair_is_that_of_the_file_or_is_named(measured: AcceptanceResult, tmp_path: Path) -> None:
    for of_file in (tag_value(FULL), None):  # an endpoint has a tag, a URL has none
        file = saved(tmp_path, replace(measured, server=replace(measured.server, pair=of_file)))
        assert find_pair(with_text_acceptance(CATALOG, PAIR, file), PAIR).drafter.on_text
    with raises_code("acceptance-file", UserError):
        with_text_acceptance(CATALOG, "gpt-oss-20b", file)


def test_folders_that_an_entry_names_are_its_pair(
    measured: AcceptanceResult, tmp_path: Path
) -> None:
    target, head = CATALOG.targets["openai/gpt-oss-20b"], {"weights": "/models/head"}
    drafters = tuple(each.model_copy(update=head) for each in target.drafters[:1])
    mine = target.model_copy(
        update={"id": "mine/tuned", "short_name": "tuned", "weights": "/models/My model",
                "drafters": drafters, "default_drafter": drafters[0].name}
    )  # fmt: skip
    catalog = replace(CATALOG, targets={mine.id: mine})
    for name, is_taken in {"own/My-model": True, "own/other": False}.items():
        server = replace(measured.server, pair=f"{name}+/models/head")
        file = saved(tmp_path, replace(measured, server=server))
        with nullcontext() if is_taken else raises_code("acceptance-file", UserError):
            assert find_pair(with_text_acceptance(catalog, "tuned", file), "tuned").drafter.on_text


@pytest.mark.parametrize(
    ("pair", "server", "acceptance"),
    [
        ("gpt-oss-120b", {}, {}), ("gpt-oss-20b+eagle3", {}, {}),
        (PAIR, {"stand_in": "peagle/tiny"}, {}), (PAIR, {}, {"basis": "imposed"}),
        (PAIR, {}, {"drafts": 99}),
    ],
)  # fmt: skip
def test_what_is_not_of_the_users_text_is_refused(
    measured: AcceptanceResult,
    tmp_path: Path,
    pair: str,
    server: dict[str, Any],
    acceptance: dict[str, Any],
) -> None:
    total = replace(measured.total, acceptance=replace(measured.total.acceptance, **acceptance))
    wrong = replace(measured, server=replace(measured.server, **server), total=total)
    with raises_code("acceptance-file", UserError):
        with_text_acceptance(CATALOG, pair, saved(tmp_path, wrong))
