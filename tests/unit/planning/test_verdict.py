"""The verdict on pairs of the catalogue: what is compared, on which instance, and what is missing.

Measured with vLLM 0.26.0 on an H200: K=7 is fastest with one request, K=3 with eight or more.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from peagle.catalog import find_instance, load_catalog
from peagle.catalog.schema import SpeedRun
from peagle.catalog.tables import Price
from peagle.planning.verdict import VerdictRequest, make_verdict
from peagle.speed.models import WORKLOADS, Workload
from peagle.speed.verdict import NO_SPECULATION, LoadVerdict, Setting, Verdict, WorkloadVerdict
from tests.support import bundled_evidence, raises_code

CATALOG = load_catalog()
MEASURED = VerdictRequest("gpt-oss-20b", gpu="H200", vllm="0.26.0")
SHORT = {"requests": WORKLOADS["short-prompt"]}
ELSEWHERE = Price(usd_per_hour=72.5, region="us-east-2", date=date(2026, 10, 3), source="a list")


def best(verdict: Verdict, size: int = 0) -> dict[float, Setting | None]:
    return {load.concurrency: load.best for load in verdict.workloads[size].loads}


def texts(verdict: Verdict, kind: str) -> list[str]:
    return [change.text for change in verdict.changes if change.kind == kind]


@pytest.mark.thorough
def test_measured_settings_win_where_they_were_measured() -> None:
    verdict = make_verdict(MEASURED, CATALOG)
    winners = best(verdict)
    assert winners[1] == Setting(drafter="p-eagle", k=7)
    assert winners[128] == Setting(drafter="p-eagle", k=3)
    for load in verdict.workloads[0].loads:
        if load.concurrency in (1, 8, 32, 64, 128):
            chosen = load.speed(load.best)
            assert chosen is not None
            assert chosen.basis == "measured"


def test_a_named_drafter_is_compared_alone() -> None:
    verdict = make_verdict(replace(MEASURED, pair="gpt-oss-20b+eagle3"), CATALOG)
    names = {speed.setting.drafter for load in verdict.workloads[0].loads for speed in load.speeds}
    assert names == {None, "eagle3"}


@pytest.mark.thorough
def test_a_drafter_of_unknown_acceptance_has_a_break_even_length_only() -> None:
    verdict = make_verdict(MEASURED, CATALOG)
    (ngram,) = [
        speed for speed in verdict.workloads[0].loads[0].speeds if speed.setting.drafter == "ngram"
    ]
    assert ngram.basis == "unknown"
    assert ngram.break_even_acceptance_length is not None
    assert 1 < ngram.break_even_acceptance_length < 3
    assert any("ngram" in text for text in texts(verdict, "evidence"))


@pytest.mark.thorough
def test_a_head_drafts_nothing_in_longer_requests_than_it_supports() -> None:
    target = CATALOG.targets["openai/gpt-oss-20b"]
    drafters = tuple(one.model_copy(update={"max_positions": 4096}) for one in target.drafters)
    short = target.model_copy(update={"drafters": drafters})
    catalog = replace(CATALOG, targets={target.id: short})
    sizes = {"below": Workload(3000, 500), "above": Workload(4000, 500)}
    verdict = make_verdict(replace(MEASURED, workloads=sizes), catalog)

    def bases(size: int) -> set[str]:
        loads = verdict.workloads[size].loads
        speeds = (speed for load in loads for speed in load.speeds)
        return {speed.basis for speed in speeds if speed.setting.drafter == "p-eagle"}

    assert (bases(0), bases(1)) == ({"estimated"}, {"unknown"})


@pytest.mark.thorough
def test_the_acceptance_that_evidence_measured_on_another_device_counts() -> None:
    with bundled_evidence():
        verdict = make_verdict(VerdictRequest("tiny+p-eagle", gpu="L4"), load_catalog())
    speeds = [one for load in verdict.workloads[0].loads for one in load.speeds if one.setting.k]
    assert {speed.acceptance_basis for speed in speeds} == {"measured"}
    assert all(speed.basis == "estimated" for speed in speeds)
    assert not any("no acceptance is known" in text for text in texts(verdict, "evidence"))


def test_a_type_with_a_price_in_another_region_is_preferred_to_one_without() -> None:
    priced = find_instance(CATALOG.instances, "ml.p5en.48xlarge").model_copy(
        update={"prices": (ELSEWHERE,)}
    )
    unpriced = find_instance(CATALOG.instances, "ml.p5e.48xlarge").model_copy(update={"prices": ()})
    others = {one.type: one for one in (priced, unpriced)}
    table = CATALOG.instances
    changed = tuple(others.get(instance.type, instance) for instance in table.instances)
    table = table.model_copy(update={"instances": changed})
    catalog = replace(CATALOG, instances=table)
    verdict = make_verdict(replace(MEASURED, workloads=SHORT), catalog)
    assert verdict.instance_type == "ml.p5en.48xlarge"
    assert any("in us-east-2 it is $72.50" in text for text in texts(verdict, "evidence"))


def test_the_smallest_cheapest_instance_with_the_gpu_is_used() -> None:
    verdict = make_verdict(replace(MEASURED, gpu="l40s", workloads=SHORT), CATALOG)
    assert (verdict.instance_type, verdict.gpu) == ("ml.g6e.xlarge", "L40S")
    assert verdict.usd_per_hour is not None
    first = verdict.workloads[0].loads[0].speeds[0]
    assert first.usd_per_million_tokens is not None


def test_an_instance_type_may_be_named() -> None:
    request = VerdictRequest("gpt-oss-20b", instance_type="ml.g6e.12xlarge", workloads=SHORT)
    verdict = make_verdict(replace(request, tensor_parallel_size=2), CATALOG)
    assert (verdict.instance_type, verdict.tensor_parallel_size) == ("ml.g6e.12xlarge", 2)


def test_the_plan_of_newer_versions_is_in_what_would_change_it() -> None:
    verdict = make_verdict(replace(MEASURED, vllm=None, workloads=SHORT), CATALOG)
    adaptive, measured = texts(verdict, "version")
    assert "vLLM 0.30.0 can adapt the drafted length of eagle3" in adaptive
    assert "not that of p-eagle" in adaptive
    assert "measured with vLLM 0.26.0" in measured


@pytest.mark.parametrize(
    ("changes", "code", "named"),
    [
        ({"gpu": "H900"}, "unknown-gpu", "'H900'"),
        ({"pair": "gpt-oss-21b"}, "unknown-target", "'gpt-oss-21b'"),
        (
            {"instance_type": "ml.g6e.xlarge"},
            "conflicting-options",
            "ml.g6e.xlarge has L40S GPUs, not H200",
        ),
        ({"instance_type": "ml.g9.xlarge", "gpu": None}, "instance-unknown", "ml.g9.xlarge"),
        ({"tensor_parallel_size": 3}, "tensor-parallel", "3 of the GPUs"),
        (
            {"gpu": None, "instance_type": "ml.g5.xlarge", "pair": "gpt-oss-120b"},
            "does-not-fit",
            "",
        ),
        ({"vllm": "0.1.0"}, "vllm-below-minimum", "0.1.0"),
        (
            {"workloads": {"requests": Workload(10**6, 1)}},
            "requests-above-context",
            "1,000,001 tokens",
        ),
        ({"region": "mars-1"}, "region-unknown", "mars-1"),
    ],
)
def test_an_impossible_request_has_one_clear_error(
    changes: dict[str, object], code: str, named: str
) -> None:
    with raises_code(code) as refused:
        make_verdict(replace(MEASURED, **changes), CATALOG)  # type: ignore[arg-type]
    assert named in refused.value.message


def test_twice_the_price_is_twice_the_cost() -> None:
    verdict = make_verdict(replace(MEASURED, gpu="L40S", workloads=SHORT), CATALOG)
    for load in verdict.workloads[0].loads:
        alone = load.speed(NO_SPECULATION)
        assert alone is not None
        assert alone.tokens_per_second is not None
        usd = (verdict.usd_per_hour or 0) / alone.tokens_per_second / 3600 * 1e6
        assert alone.usd_per_million_tokens == pytest.approx(usd, abs=1e-4)


@pytest.mark.thorough
def test_the_choice_is_within_three_percent_of_the_best_measured_one() -> None:
    """Of all bundled evidence, at each measured load; an estimate wins only if it is clearly
    faster."""
    with bundled_evidence():
        catalog = load_catalog()
        runs = [
            (name, run) for name, found in catalog.speeds.items() for run in found if run.speeds
        ]
        for target, run in runs:
            sizes = {(row.prompt_tokens or 0, row.output_tokens or 0) for row in run.speeds}
            request = VerdictRequest(
                target,
                run.gpu,
                tensor_parallel_size=run.tensor_parallel_size,
                vllm=run.vllm,
                workloads={f"{size}": Workload(*size) for size in sizes},
                loads=tuple({row.concurrency for row in run.speeds}),
            )
            for size in make_verdict(request, catalog).workloads:
                for load in size.loads:
                    _check_choice(run, size, load)


def _check_choice(run: SpeedRun, size: WorkloadVerdict, load: LoadVerdict) -> None:
    rows = {
        (row.drafter, row.k): row.output_tokens_per_second
        for row in run.speeds
        if (row.prompt_tokens, row.output_tokens) == (size.prompt_tokens, size.output_tokens)
        and row.concurrency == load.concurrency
    }
    chosen = load.speed(load.best)
    if not rows:
        return
    assert chosen is not None
    speed = chosen.tokens_per_second or 0
    if chosen.basis == "measured":
        assert rows[chosen.setting.drafter, chosen.setting.k] >= 0.97 * max(rows.values()), run.file
    else:
        assert speed > 1.05 * max(rows.values()), run.file
