"""K and speculation from evidence: only measured speeds decide."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from peagle.planning import Plan
from tests.unit.planning.small_catalog import because, codes, finding_of, plan
from tests.unit.planning.speeds import FAST, measured, row, run

MEASURED = measured(run())
ON_FAST: dict[str, Any] = {"instance_type": "ml.g7e.2xlarge", "catalog": MEASURED}


def k_of(made: Plan) -> int:
    return made.speculation.k if made.speculation else 0


@pytest.mark.parametrize(("load", "k", "speed"), [(1, 7, 240), (8, 3, 900)])
def test_k_is_the_fastest_measured_at_this_load(load: int, k: int, speed: float) -> None:
    made = plan(concurrency=load, **ON_FAST)
    assert k_of(made) == k
    assert made.speed is not None
    assert made.speed.tokens_per_second == speed
    reason = str(because(made, "k"))
    assert reason.startswith(f"the fastest (measured): {speed:,.0f} tokens/s with {load} req")
    assert f"speed.json: {FAST}, vLLM 0.28.0" in made.speed.source


def test_between_two_measured_loads_the_speed_is_interpolated() -> None:
    made = plan(concurrency=20, speculation=False, **ON_FAST)
    assert made.speed is not None
    assert made.speed.tokens_per_second == 1050, "half way from 500 at 8 to 1600 at 32"
    assert made.speed.source.endswith("8 and 32 requests")
    exact = plan(concurrency=8, **ON_FAST).speed
    assert exact is not None
    assert exact.source.endswith("8 requests")


@pytest.mark.parametrize("load", [33, 1000])
def test_no_speed_is_claimed_above_the_largest_load_on_an_unknown_gpu(load: int) -> None:
    made = plan(concurrency=load, **ON_FAST)
    assert basis(made) == "unknown"
    assert k_of(made) == 5, "the recommended one"


def test_no_speed_is_claimed_below_the_smallest_load_on_an_unknown_gpu() -> None:
    rows = tuple(row for row in run().speeds if row.concurrency >= 8)
    made = plan(concurrency=7, instance_type="ml.g7e.2xlarge", catalog=measured(run(speeds=rows)))
    assert basis(made) == "unknown"


def basis(made: Plan) -> str:
    assert made.speed is not None
    return made.speed.basis


@pytest.mark.parametrize(
    "other",
    [{"gpu": "GPU-sm_100"}, {"tensor_parallel_size": 2}, {"target": "acme/other"}],
    ids=["gpu", "gpus", "target"],
)
def test_evidence_of_other_gpus_or_drafters_is_not_used(other: dict[str, Any]) -> None:
    runs = run(**other)
    catalog = replace(measured(runs), speeds={runs.target: (runs,)})
    made = plan(instance_type="ml.g7e.2xlarge", catalog=catalog)
    assert basis(made) == "unknown"
    assert k_of(made) == 5


def test_speculation_that_loses_is_not_planned() -> None:
    made = plan(concurrency=32, **ON_FAST)
    assert (made.speculation, made.drafter, made.pair) == (None, None, "acme/chat")
    assert "--speculative-config" not in made.engine_arguments
    assert made.fit.drafter_gib == 0
    assert made.name == "peagle-chat", "what the bare target gives"
    assert because(made, "speculation") == (
        "$0.73 per million output tokens without, $0.78 with p-eagle"
    )
    assert because(made, "k") is None
    assert made.speed is not None
    assert made.speed.tokens_per_second == 1600


@pytest.mark.parametrize(
    ("pair", "options", "k"),
    [("chat+p-eagle", {}, 3), ("chat", {"k": 5}, 5), ("chat", {"drafter": "p-eagle"}, 3)],
)
def test_speculation_stays_when_the_user_asks_for_it(
    pair: str, options: dict[str, Any], k: int
) -> None:
    rows = (*run().speeds, row("p-eagle", 5, 32, 1300))
    catalog = measured(run(speeds=rows))
    made = plan(pair, concurrency=32, instance_type="ml.g7e.2xlarge", catalog=catalog, **options)
    assert k_of(made) == k
    finding = finding_of(made, "speculation-loses")
    assert finding.level == "warning"
    assert "--no-speculation" in finding.fix


def test_without_a_baseline_speculation_stays() -> None:
    made = plan(
        instance_type="ml.g7e.2xlarge", catalog=measured(run(speeds=(row("p-eagle", 3, 8, 5),)))
    )
    assert k_of(made) == 3
    assert "speculation-loses" not in codes(made)


def test_the_users_k_is_kept_with_a_note_if_another_is_faster() -> None:
    made = plan(concurrency=8, k=7, **ON_FAST)
    assert k_of(made) == 7
    assert made.speed is not None
    assert made.speed.tokens_per_second == 800
    finding = finding_of(made, "k-below-fastest")
    assert finding.message.startswith("K=7 reaches 800 tokens/s with 8 requests at a time, K=3 900")
    assert "k-below-fastest" not in codes(plan(concurrency=8, k=3, **ON_FAST))


def test_an_unmeasured_k_has_no_speed() -> None:
    made = plan(concurrency=8, k=4, **ON_FAST)
    assert (k_of(made), basis(made)) == (4, "unknown")


def test_k_above_the_trained_one_is_not_chosen() -> None:
    rows = (row("p-eagle", 3, 8, 900), row("p-eagle", 9, 8, 9000))
    made = plan(instance_type="ml.g7e.2xlarge", catalog=measured(run(speeds=rows)))
    assert k_of(made) == 3


def test_evidence_may_name_the_drafters_weights() -> None:
    rows = (row("acme/chat-p-eagle", 4, 8, 900),)
    made = plan(instance_type="ml.g7e.2xlarge", catalog=measured(run(speeds=rows)))
    assert k_of(made) == 4


def test_the_users_head_has_no_speed_of_the_catalogues_head() -> None:
    made = plan(drafter="s3://bucket/head", **ON_FAST)
    assert basis(made) == "unknown"
    assert k_of(made) == 5


def test_imposed_acceptance_is_labelled() -> None:
    rows = tuple(
        one.model_copy(update={"acceptance_length": 2.5 if one.k else None}) for one in run().speeds
    )
    catalog = measured(run(synthetic=True, speeds=rows))
    made = plan(instance_type="ml.g7e.2xlarge", catalog=catalog)
    assert made.speed is not None
    assert (made.speed.acceptance_length, made.speed.acceptance_basis) == (2.5, "imposed")
    alone = plan(instance_type="ml.g7e.2xlarge", speculation=False, catalog=catalog)
    assert alone.speed is not None
    assert (alone.speed.acceptance_length, alone.speed.acceptance_basis) == (1, "none")


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ({}, {"vllm": "0.26.0", "synthetic": False, "date": date(2026, 12, 1)}),
        ({"synthetic": False}, {"synthetic": True, "date": date(2026, 12, 1)}),
        ({"date": date(2026, 12, 1)}, {}),
    ],
    ids=["planned version", "trained head", "newest"],
)
def test_the_best_matching_run_is_used(better: dict[str, Any], worse: dict[str, Any]) -> None:
    for runs in ((run(times=2, **better), run(**worse)), (run(**worse), run(times=2, **better))):
        made = plan(instance_type="ml.g7e.2xlarge", catalog=measured(*runs))
        assert made.speed is not None
        assert made.speed.tokens_per_second == 1800


def test_only_rows_with_this_size_of_requests_are_used() -> None:
    rows = tuple(
        row("p-eagle", k, 8, speed, prompt_tokens=prompt)
        for prompt, k, speed in ((2048, 3, 900), (2048, 7, 800), (128, 3, 90), (128, 7, 5000))
    )
    catalog = measured(run(speeds=rows))
    on_fast: dict[str, Any] = {"instance_type": "ml.g7e.2xlarge", "catalog": catalog}
    assert k_of(plan(**on_fast)) == 3
    assert k_of(plan(prompt_tokens=128, **on_fast)) == 7
    assert basis(plan(prompt_tokens=1000, **on_fast)) == "unknown"
