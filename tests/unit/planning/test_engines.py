"""What a load knows of its engines, and what plans of one process share."""

from dataclasses import replace
from typing import Any

import pytest

from peagle.catalog import load_catalog
from peagle.planning import Options, make_plan
from peagle.planning.load import Load, computed_for
from tests.unit.planning.small_catalog import CHAT, P_EAGLE
from tests.unit.planning.speeds import measured, row, run

CATALOG = load_catalog()


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
