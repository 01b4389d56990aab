"""What a load knows of its engines, and what plans of one process share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from peagle.catalog import load_catalog
from peagle.planning import Options, make_plan
from peagle.planning.load import Load, computed_for
from peagle.speed.models import Workload
from tests.unit.planning.small_catalog import CHAT, P_EAGLE
from tests.unit.planning.speeds import measured, row, run

CATALOG = load_catalog()
TARGET = CATALOG.targets["openai/gpt-oss-20b"]
LOAD = Load(TARGET, "0.28.0", 8192, 32, CATALOG, {"block-size": 16})


def _in_catalog(**changed: Any) -> Load:
    return replace(LOAD, catalog=replace(CATALOG, **changed))


def _faster_weights() -> Any:
    model = CATALOG.speed_model
    constants = model.constants.model_copy(update={"weights": model.constants.weights / 2})
    return model.model_copy(update={"constants": constants})


OTHER: dict[str, Callable[[], Load]] = {
    "a longer context": lambda: replace(LOAD, max_model_len=16_384),
    "more requests": lambda: replace(LOAD, concurrency=33),
    "another vLLM": lambda: replace(LOAD, vllm="0.27.0"),
    "another setting": lambda: replace(LOAD, settings={"block-size": 32}),
    "longer requests": lambda: replace(LOAD, workload=Workload(4096, 256)),
    "the user's own head": lambda: replace(LOAD, own_head=TARGET.drafters[0]),
    "larger weights": lambda: replace(
        LOAD, target=TARGET.model_copy(update={"weight_bytes": TARGET.weight_bytes * 2})
    ),
    "another speed model": lambda: _in_catalog(speed_model=_faster_weights()),
    "other instances": lambda: _in_catalog(instances=CATALOG.instances.model_copy()),
    "other rules": lambda: _in_catalog(version_rules=CATALOG.version_rules.model_copy()),
    "other runtimes": lambda: _in_catalog(runtimes=CATALOG.runtimes.model_copy()),
    "no measured rows": lambda: _in_catalog(speeds={}),
}


@pytest.mark.parametrize("name", OTHER)
def test_what_is_computed_for_one_load_is_not_used_for_another(name: str) -> None:
    assert OTHER[name]().computed is not LOAD.computed


def test_the_same_load_is_computed_once_also_when_the_catalogue_is_loaded_again() -> None:
    first, again = load_catalog(), load_catalog()  # both now: other catalogues end what is kept
    load = replace(LOAD, catalog=first, target=first.targets[TARGET.id])
    same = replace(load, catalog=again, target=again.targets[TARGET.id])
    assert again is not first
    assert same.computed is load.computed


VARIANTS: tuple[dict[str, object], ...] = (
    {}, {"k": 1}, {"k": 5}, {"copies": 1}, {"speculation": False}, {"drafter": "eagle3"},
    {"instance_type": "ml.p5.48xlarge"}, {"instance_count": 2}, {"min_tokens_per_second": 900.0},
    {"region": "eu-west-1"}, {"max_instances": 3},
)  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("pair", ["gpt-oss-20b", "tiny"])
def test_a_plan_after_others_equals_that_of_a_fresh_process(pair: str) -> None:
    variants = [changes for changes in VARIANTS if pair != "tiny" or "drafter" not in changes]

    def planned(changes: dict[str, object]) -> Any:
        return make_plan(Options.model_validate({"pair": pair, **changes}), CATALOG)

    fresh = []
    for changes in variants:
        computed_for.cache_clear()
        fresh.append(planned(changes))
    assert [planned(changes) for changes in reversed(variants)][::-1] == fresh


UNPUBLISHED = P_EAGLE.model_copy(update={"weights": "s3://my-bucket/head", "published": ()})
RUN = run(speeds=(row("p-eagle", 5, 8, 900.0, acceptance_length=3.1),))


def test_the_runs_of_a_drafter_say_its_acceptance_but_not_that_of_a_head_of_the_same_name() -> None:
    load = Load(CHAT, "0.28.0", 4096, 8, measured(RUN))
    unpublished = replace(load, own_head=UNPUBLISHED)
    acceptance = load.acceptance(UNPUBLISHED, 5)
    assert (acceptance.basis, acceptance.length) == ("measured", 3.1)
    assert set(unpublished.names(UNPUBLISHED)) == {"s3://my-bucket/head"}
    assert unpublished.acceptance(UNPUBLISHED, 5).basis == "unknown"
    assert unpublished.acceptance(None, 0).basis == "none"
