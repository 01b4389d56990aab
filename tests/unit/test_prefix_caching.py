"""What a hit of the prefix cache gives back with a drafter, and where the cache is on."""

import pytest

from peagle.planning import Options, make_plan
from peagle.vllm.defaults import cached_tokens, caches_prefixes, tokens_lost
from tests.unit.rendering.plans import CATALOG


@pytest.mark.parametrize(("method", "blocks", "lost", "cached"), [
    ("eagle3", (16,), 16, 976),  # vLLM 0.28.0 drops the last matched block
    ("eagle3", (16, 16), 16, 976),
    ("eagle3", (16, 32), 32, 960),  # all groups together: the common multiple
    ("ngram", (16, 16), 0, 992),
    (None, (128,), 0, 896),
])  # fmt: skip
def test_a_hit_loses_a_block_with_a_head_that_reads_hidden_states(
    method: str | None, blocks: tuple[int, ...], lost: int, cached: int
) -> None:
    assert tokens_lost(method, blocks) == lost
    assert cached_tokens(1000, method, blocks) == cached
    assert cached_tokens(10, method, blocks) == 0


@pytest.mark.parametrize(("pair", "vllm", "on"), [
    ("gpt-oss-20b", "0.28.0", True),
    ("qwen3-coder-30b", "0.28.0", True),
    ("gpt-oss-20b", "0.30.0", True),
    ("gpt-oss-20b", "0.27.1", False),
    ("gemma-4-31b+eagle3", "0.28.0", False),
    ("gemma-4-31b+mtp", "0.28.0", False),
])  # fmt: skip
def test_plan_leaves_the_cache_on_where_it_is_known_to_work(pair: str, vllm: str, on: bool) -> None:
    plan = make_plan(Options(pair=pair, vllm=vllm), CATALOG)
    codes = [entry.code for entry in plan.reasons if "prefix-caching" in entry.what]
    assert ("--no-enable-prefix-caching" not in plan.engine_arguments) is on
    assert codes == ([] if on else ["catalogue-setting"])


@pytest.mark.parametrize(("settings", "on"), [
    ({}, True),
    ({"no-enable-prefix-caching": True}, False),
    ({"no-enable-prefix-caching": None}, True),
    ({"enable-prefix-caching": False}, False),
])  # fmt: skip
def test_the_cache_is_on_unless_switched_off(settings: dict[str, object], on: bool) -> None:
    assert caches_prefixes(settings) is on
