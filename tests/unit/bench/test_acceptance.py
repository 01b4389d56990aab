"""Acceptance by domain from counters: numbers, intervals, and what an early end leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peagle.bench.acceptance import (
    AcceptanceRequest,
    AcceptanceResult,
    measure_acceptance,
    rates_of,
    read_acceptance,
    require_none_refused,
)
from peagle.bench.result import BenchSetting, Interval
from peagle.bench.workloads import PromptSet
from peagle.errors import EngineError, NotProved, Unsupported, UserError
from peagle.protocol import Counters
from tests.support import raises_code
from tests.unit.bench.drafting import Drafting, prompts_of, target_of


def measure(
    server: Drafting,
    prompts: PromptSet,
    concurrency: int = 4,
    kept: list[AcceptanceResult] | None = None,
) -> AcceptanceResult:
    return measure_acceptance(
        server.target(),
        prompts,
        AcceptanceRequest(concurrency=concurrency),
        keep=(kept if kept is not None else []).append,
    )


def test_every_domain_has_its_own_acceptance() -> None:
    found = measure(Drafting(), prompts_of("code 1", "chat 1", "code 2", "chat 2", "chat 3"))

    code, chat = found.domains
    assert (code.domain, code.prompts, code.output_tokens) == ("code", 2, 80)
    assert (code.acceptance.length, code.acceptance.per_position) == (4.0, (1.0, 1.0, 1.0))
    assert (chat.domain, chat.acceptance.drafts) == ("chat", 60)
    assert chat.acceptance.length == 2.0
    assert chat.acceptance.per_position == pytest.approx((0.7, 0.2, 0.1))
    assert chat.interval == Interval(2.0, 2.0, 2.0)
    assert found.total.acceptance.length == 1 + (60 + 60) / (20 + 60)
    assert found.total.interval.low < 2.5 < found.total.interval.high <= 4.0
    assert (found.k, found.incomplete, found.others_sent) == (3, "", False)
    assert found.server.name == "peagle-tiny"
    assert chat.acceptance.basis == "measured"
    assert chat.is_reliable is False
    assert measure(Drafting(), prompts_of(*(f"code {n}" for n in range(45)))).total.groups == 15
    target = Drafting().target(0.7, 0.4, 0.2)
    imposed = measure_acceptance(target, prompts_of("chat"), AcceptanceRequest())
    assert imposed.total.acceptance.basis == "imposed"


def test_requests_of_other_clients_are_noticed() -> None:
    class Shared(Drafting):
        def counters(self) -> Counters:
            self.counted += Counters(50, 150, 10, (10, 0, 0))
            return self.counted

    assert measure(Shared(), prompts_of("code 1", "code 2")).others_sent


def test_refused_prompts_are_left_out_and_named() -> None:
    found = measure(Drafting(), prompts_of("code 1", "too long", "chat"))

    assert [one.line for one in found.refused] == [2]
    assert found.total.prompts == 2
    with raises_code("prompts", UserError) as raised:
        require_none_refused(found)
    assert raised.value.message.startswith("p.jsonl, line 2: ")
    require_none_refused(measure(Drafting(), prompts_of("chat")))
    with raises_code("prompts", UserError) as raised:
        measure(Drafting(), prompts_of("too long", "too long"))
    assert raised.value.message.startswith("p.jsonl, line 1 (and 1 more): ")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (EngineError("the engine is gone"), "the engine is gone"),
        (KeyboardInterrupt(), "interrupted"),
    ],
)
def test_an_early_end_keeps_what_was_measured(error: BaseException, why: str) -> None:
    kept: list[AcceptanceResult] = []

    with pytest.raises(type(error)):
        measure(
            Drafting(dies="chat 2", error=error), prompts_of("code", "chat 1", "chat 2"), 1, kept
        )

    assert [one.domain for one in kept[0].domains] == ["code", "chat"]
    assert kept[0].incomplete == why
    assert kept[0].total.prompts == 2


def test_a_server_that_does_not_speculate_or_count_is_an_error() -> None:
    uncounted = target_of(Drafting().ask, setting=BenchSetting("p-eagle", 3))
    with raises_code("no-counters", Unsupported):
        measure_acceptance(uncounted, prompts_of("a"), AcceptanceRequest())
    server = Drafting()
    target = target_of(server.ask, lambda: Counters(0, 0, 0))
    with raises_code("no-speculation", NotProved):
        measure_acceptance(target, prompts_of("a", "b"), AcceptanceRequest())

    assert len(server.bodies) == 1


def test_a_result_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "acceptance.json"
    found = measure(Drafting(), prompts_of("code 1", "too long", "chat 1"))
    file.write_text(json.dumps(found.document()))

    again = read_acceptance(file)

    assert again == found
    assert rates_of(again, 2) == pytest.approx((0.8, 0.4667), abs=1e-4)
    assert rates_of(again, 3, "code") == (1.0, 1.0, 1.0)
