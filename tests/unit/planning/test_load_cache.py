"""What plans of one process share: a plan after others is the plan of a fresh process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from peagle.catalog import load_catalog
from peagle.planning import Options, load_cache, make_plan
from peagle.planning.candidates import PairLoad
from peagle.planning.load_cache import cache_for
from peagle.speed.models import Workload

CATALOG = load_catalog()
TARGET = CATALOG.targets["openai/gpt-oss-20b"]
LOAD = PairLoad(TARGET, TARGET.drafters[0], 3, "0.28.0", 8192, 32, CATALOG, {"block-size": 16})


def _faster_weights() -> dict[str, Any]:
    model = CATALOG.speed_model
    constants = model.constants.model_copy(update={"weights": model.constants.weights / 2})
    return {"speed_model": model.model_copy(update={"constants": constants})}


OTHER: dict[str, Callable[[], PairLoad]] = {
    "a longer context": lambda: replace(LOAD, max_model_len=16_384),
    "more requests": lambda: replace(LOAD, concurrency=33),
    "another vLLM": lambda: replace(LOAD, vllm="0.27.0"),
    "another setting": lambda: replace(LOAD, settings={"block-size": 32}),
    "longer requests": lambda: replace(LOAD, workload=Workload(4096, 256)),
    "the user's own head": lambda: replace(LOAD, own_head=True),
    "another drafter": lambda: replace(LOAD, drafter=TARGET.drafters[1]),
    "no drafter": lambda: replace(LOAD, drafter=None),
    "larger weights": lambda: replace(LOAD, target=_grown()),
    "a head of the same name": lambda: replace(
        LOAD, drafter=TARGET.drafters[0].model_copy(update={"acceptance_floor": 1.01})
    ),
    "another speed model": lambda: _in_catalog(_faster_weights()),
    "other instances": lambda: _in_catalog({"instances": CATALOG.instances.model_copy()}),
    "other rules": lambda: _in_catalog({"version_rules": CATALOG.version_rules.model_copy()}),
    "other runtimes": lambda: _in_catalog({"runtimes": CATALOG.runtimes.model_copy()}),
    "no measured rows": lambda: _in_catalog({"speeds": {}}),
}


def _grown() -> Any:
    return TARGET.model_copy(update={"weight_bytes": TARGET.weight_bytes * 2})


def _in_catalog(changed: dict[str, Any]) -> PairLoad:
    return replace(LOAD, catalog=replace(CATALOG, **changed))


@pytest.mark.parametrize("name", OTHER)
def test_what_is_computed_for_one_load_is_not_used_for_another(name: str) -> None:
    assert cache_for(OTHER[name]()) is not cache_for(LOAD)


def test_the_same_load_is_computed_once_also_when_the_catalogue_is_loaded_again() -> None:
    first, again = load_catalog(), load_catalog()  # both now: other catalogues end what is kept
    load = replace(LOAD, catalog=first, target=first.targets[TARGET.id])
    same = replace(load, catalog=again, target=again.targets[TARGET.id], k=7)

    assert again is not first
    assert cache_for(same) is cache_for(load)


VARIANTS: tuple[dict[str, object], ...] = (
    {}, {"k": 1}, {"k": 5}, {"copies": 1}, {"speculation": False}, {"drafter": "eagle3"},
    {"instance_type": "ml.p5.48xlarge"}, {"instance_count": 2}, {"min_tokens_per_second": 900.0},
    {"region": "eu-west-1"}, {"max_instances": 3},
)  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("pair", ["gpt-oss-20b", "tiny"])
def test_a_plan_after_others_equals_that_of_a_fresh_process(pair: str) -> None:
    variants = [one for one in VARIANTS if pair != "tiny" or "drafter" not in one]
    fresh = []
    for one in variants:
        load_cache._cache.cache_clear()
        fresh.append(make_plan(Options.model_validate({"pair": pair, **one}), CATALOG))

    after = [
        make_plan(Options.model_validate({"pair": pair, **one}), CATALOG)
        for one in reversed(variants)
    ]

    assert after[::-1] == fresh
