"""Acceptance by domain from counters, and its file: numbers, intervals, what an early end leaves,
files that are refused, plans on which it is imposed, and catalogues."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peagle.bench.acceptance import (
    AcceptanceRequest,
    AcceptanceResult,
    acceptance_bytes,
    measure_acceptance,
    rates_of,
    read_acceptance,
    require_none_refused,
    with_imposed_acceptance,
    with_text_acceptance,
)
from peagle.bench.result import BenchSetting, Interval
from peagle.catalog import find_pair, load_catalog
from peagle.errors import EngineError, NotProved, Unsupported, UserError
from peagle.planning import Options, make_plan
from peagle.protocol import Counters
from peagle.render.requests import tag_value
from peagle.speed.acceptance import acceptance_of
from peagle_serve.contract import SPECULATION
from tests.support import raises_code
from tests.unit.bench.drafting import Drafting, prompts_of, target_of

PAIR, FULL = "gpt-oss-20b+p-eagle", "openai/gpt-oss-20b+amazon/GPT-OSS-20B-P-EAGLE"
CATALOG = load_catalog()


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
    assert (result.k, result.incomplete, result.others_sent) == (3, "", False)
    assert measure(Drafting(), *(f"code {n}" for n in range(45))).total.groups == 15
    target = Drafting().target(0.7, 0.4, 0.2)
    imposed = measure_acceptance(target, prompts_of("chat"), AcceptanceRequest())
    assert (imposed.total.acceptance.basis, chat.acceptance.basis) == ("imposed", "measured")


def test_requests_of_other_clients_are_noticed() -> None:
    class Shared(Drafting):
        def counters(self) -> Counters:
            self.counted += Counters(50, 150, 10, (10, 0, 0))
            return self.counted

    assert measure(Shared(), "code 1", "code 2").others_sent


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


@pytest.mark.parametrize(
    ("error", "why"),
    [(EngineError("the engine is gone"), "the engine is gone"),
     (KeyboardInterrupt(), "interrupted")],
)  # fmt: skip
def test_an_early_end_keeps_what_was_measured(error: BaseException, why: str) -> None:
    kept: list[AcceptanceResult] = []
    server = Drafting(dies="chat 2", error=error)
    with pytest.raises(type(error)):
        measure(server, "code", "chat 1", "chat 2", concurrency=1, keep=kept.append)
    assert [each.domain for each in kept[0].domains] == ["code", "chat"]
    assert (kept[0].incomplete, kept[0].total.prompts) == (why, 2)


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
    assert rates_of(again, 3, "code") == (1.0, 1.0, 1.0)
    assert rates_of(again, 2, "chat") == (0.7, 0.2)
    for k, domain in ((4, None), (2, "chats")):
        with raises_code("acceptance-file", UserError):
            rates_of(again, k, domain)


@pytest.mark.parametrize(
    "values",
    [
        {"per_position": [0.7, 0.2, -0.1]}, {"per_position": [1.7, 0.2, 0.1]},
        {"per_position": [0.2, 0.7, 0.1]}, {"per_position": [0.7, 0.3]},
        {"length": 4.5}, {"length": float("nan")}, {"length": "nan"}, {"drafts": 0},
    ],
)  # fmt: skip
def test_impossible_numbers_are_refused(
    measured: AcceptanceResult, tmp_path: Path, values: dict[str, Any]
) -> None:
    file, document = tmp_path / "a.json", measured.document()
    document["total"]["acceptance"] |= values
    file.write_text(json.dumps(document))
    with raises_code("acceptance-file", UserError):
        read_acceptance(file)


@pytest.mark.parametrize(
    "text", [None, "", "{}", "[]", '{"format": 1', "NaN", '{"k": "x"}', "another format"]
)
def test_other_files_are_refused(
    measured: AcceptanceResult, tmp_path: Path, text: str | None
) -> None:
    file = tmp_path / "a.json"
    if text is not None:
        other = json.dumps(measured.document() | {"format": 2})
        file.write_text(other if text == "another format" else text)
    with raises_code("acceptance-file", UserError):
        read_acceptance(file)


def test_the_engine_gets_the_rates() -> None:
    plan = make_plan(Options(pair=PAIR, k=3), CATALOG)
    imposing = with_imposed_acceptance(plan, (0.7, 0.4, 0.2))
    config = json.loads(imposing.environment[SPECULATION])
    assert config["rejection_sample_method"] == "synthetic"
    assert config["synthetic_acceptance_rates"] == [0.7, 0.4, 0.2]
    assert config["num_speculative_tokens"] == 3
    assert imposing.environment[SPECULATION] in imposing.engine_arguments
    names = ("speculation", "environment", "engine_arguments")
    assert imposing.model_copy(update={name: getattr(plan, name) for name in names}) == plan


@pytest.mark.parametrize(
    ("domain", "lengths"), [(None, (1.8, 2.267, 2.667)), ("chat", (1.7, 1.9, 2.0))]
)
def test_it_is_preferred_to_all_other_acceptance(
    measured: AcceptanceResult, tmp_path: Path, domain: str | None, lengths: tuple[float, ...]
) -> None:
    catalog = with_text_acceptance(CATALOG, "gpt-oss-20b", saved(tmp_path, measured), domain)
    drafter = find_pair(catalog, PAIR).drafter
    runs = catalog.speeds["openai/gpt-oss-20b"]
    preferred = [acceptance_of(drafter, k, runs, {"p-eagle"}, decay=0.8) for k in (1, 2, 3)]
    assert [each.length for each in preferred] == pytest.approx(list(lengths), abs=2e-3)
    assert {each.basis for each in preferred} == {"measured"}
    assert "drafts on p.jsonl" in preferred[0].source
    assert not find_pair(CATALOG, PAIR).drafter.on_text, "the catalogue itself is unchanged"
    others = [each for each in find_pair(catalog, PAIR).target.drafters if each != drafter]
    assert {each.on_text for each in others} == {()}


def test_the_pair_is_that_of_the_file_or_is_named(
    measured: AcceptanceResult, tmp_path: Path
) -> None:
    for of_file in (tag_value(FULL), None):  # an endpoint has a tag, a URL has none
        file = saved(tmp_path, replace(measured, server=replace(measured.server, pair=of_file)))
        assert find_pair(with_text_acceptance(CATALOG, PAIR, file), PAIR).drafter.on_text
    with raises_code("acceptance-file", UserError):
        with_text_acceptance(CATALOG, "gpt-oss-20b", file)


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
