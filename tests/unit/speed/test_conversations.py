"""The performance model against measured conversations, and what a cache keeps of them."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from measurements import conversations, speed_rows
from peagle.fit.estimate import fit_of
from peagle.speed.estimate import cached_requests, on_engine
from peagle.speed.models import Workload
from tests.support import bundled_catalog, in_process
from tests.unit.speed.cases import case, tokens

CHAT = Workload(4096, 256, 3584)
ALONE = case()


@pytest.fixture(scope="module")
def rows() -> list[conversations.Conversations]:
    return list(conversations.measured())


def test_every_measured_cell_is_within_the_bars(rows: list[conversations.Conversations]) -> None:
    with bundled_catalog():
        speed_rows.catalog.cache_clear()
        errors = [abs(row.error()) for row in rows]
    speed_rows.catalog.cache_clear()
    assert len(errors) == 21
    assert sum(row.held_out for row in rows) == 3
    assert max(errors) <= 0.3
    assert statistics.median(errors) <= 0.12


@pytest.mark.thorough
def test_the_constant_is_the_one_that_fits_the_rows_that_are_not_held_out(
    rows: list[conversations.Conversations],
) -> None:
    with bundled_catalog():
        speed_rows.catalog.cache_clear()
        best = conversations.fitted([row for row in rows if row.cache and not row.held_out])
        constants = speed_rows.catalog().speed_model.constants
    speed_rows.catalog.cache_clear()
    assert constants.cached_prefill == pytest.approx(best)


def test_cached_tokens_are_not_processed() -> None:
    assert tokens(ALONE, 8, CHAT) > 1.1 * tokens(ALONE, 8, Workload(4096, 256))


def test_without_prefix_caching_nothing_is_cached() -> None:
    off = replace(ALONE, engine=replace(ALONE.engine, prefix_caching=False))
    assert on_engine(off, fit_of(off), CHAT, 8) == Workload(4096, 256)
    assert tokens(off, 8, CHAT) == tokens(off, 8, Workload(4096, 256))


def test_a_drafter_loses_a_block_of_the_size_that_is_set() -> None:
    for size, plan in ((16, ()), (64, ("--set", "block-size=64"))):
        made = in_process("plan", "gpt-oss-20b", "--workload", "chat", *plan, "--json").document
        assert made["speculation"] is not None
        assert made["speed"]["cached_prompt_tokens"] == 3584 - size


def test_a_full_cache_keeps_a_share_of_the_hits() -> None:
    fit = fit_of(ALONE)
    kept = cached_requests(ALONE, fit, CHAT)
    assert on_engine(ALONE, fit, CHAT, kept).cached_prompt_tokens == 3584
    half = on_engine(ALONE, fit, CHAT, 2 * kept).cached_prompt_tokens
    assert half == pytest.approx(3584 / 2, abs=1)


def test_engines_share_conversations_so_that_each_lacks_the_turns_of_the_others() -> None:
    """Of a turn with 512 new tokens and an answer of 256, the next one on another engine."""
    fit = fit_of(ALONE)
    two = on_engine(ALONE, fit, CHAT, 1, engines=2).cached_prompt_tokens
    assert two == 3584 - 512 - 256


SHARED = replace(CHAT, shared_prompt_tokens=2048)


def test_what_all_prompts_share_is_kept_once() -> None:
    fit = fit_of(ALONE)
    private, shared = (cached_requests(ALONE, fit, size) for size in (CHAT, SHARED))
    assert private * 4352 == pytest.approx(2048 + shared * (4352 - 2048), rel=0.03)
    off = replace(ALONE, engine=replace(ALONE.engine, prefix_caching=False))
    assert cached_requests(off, fit, SHARED) == cached_requests(off, fit, CHAT)


def test_every_prompt_and_engine_hits_what_all_share() -> None:
    fit = fit_of(ALONE)
    many = 1000 * cached_requests(ALONE, fit, SHARED)
    assert on_engine(ALONE, fit, CHAT, many).cached_prompt_tokens < 100
    assert 2048 <= on_engine(ALONE, fit, SHARED, many).cached_prompt_tokens < 2100
    assert on_engine(ALONE, fit, SHARED, 1, engines=9).cached_prompt_tokens == 2048
