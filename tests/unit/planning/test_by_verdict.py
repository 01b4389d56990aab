"""Plans that take drafter and K from a verdict, and floors that come from the speed model."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from peagle.catalog import load_catalog
from peagle.catalog.schema import SpeedRun
from peagle.errors import VerdictFileError
from peagle.planning import Options, Plan, make_plan
from peagle.planning.by_verdict import plan_by_verdict
from peagle.planning.verdict import VerdictOptions, make_verdict
from peagle.render.verdict_file import verdict_bytes, verdict_from
from peagle.speed.ranking import Setting
from peagle.speed.verdict import LoadVerdict, Verdict, WorkloadVerdict
from peagle.workload import WORKLOADS, Workload
from tests.support import bundled_evidence, in_process, raises_code

CATALOG = load_catalog()
FILE = Path("verdict.json")
SIZES = {"short": Workload(128, 400), "long": Workload(2048, 256)}


@cache
def verdict(**changes: Any) -> Verdict:
    settings: dict[str, Any] = {"pair": "gpt-oss-20b", "gpu": "L40S", "loads": (1, 8, 64)}
    options = VerdictOptions(**settings | changes)
    return make_verdict(options, CATALOG, None if options.pair == "tiny" else SIZES)


def planned(by: Verdict, **options: Any) -> Plan:
    return plan_by_verdict(Options(pair="gpt-oss-20b", **options), by, FILE, CATALOG)


def with_winner(by: Verdict, drafter: str | None, k: int) -> Verdict:
    """The verdict as if this setting won at every load."""
    document = by.model_dump(mode="json")
    for size in document["workloads"]:
        for load in size["loads"]:
            best = {"drafter": drafter, "k": k}
            (like,) = [speed for speed in load["speeds"] if speed["setting"] == load["best"]]
            others = [speed for speed in load["speeds"] if speed["setting"] != best]
            load["speeds"] = [*others, like | {"setting": best, "acceptance_length": 1.0}]
            load["speeds"][-1]["break_even_acceptance_length"] = None
            load |= {"best": best, "ties": []}
    return verdict_from(document, "verdict.json")


@pytest.mark.parametrize("concurrency", [1, 8, 64])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_the_plan_has_the_verdicts_setting(size: Workload, concurrency: int) -> None:
    sizes = {"prompt_tokens": size.prompt_tokens, "output_tokens": size.output_tokens}
    made = planned(verdict(), concurrency=concurrency, instance_count=1, **sizes)
    best = verdict().at(size, concurrency)[1].best
    assert best is not None
    drafter = made.drafter.name if made.drafter else None
    k = made.speculation.k if made.speculation else 0
    assert (drafter, k) == (best.drafter, best.k)
    assert made.instance_type == verdict().instance_type
    reason = made.reasons[0]
    assert (reason.what, reason.code) == ("drafter", "best-in-verdict")
    assert reason.values["file"] == "verdict.json"


@pytest.mark.parametrize(("drafter", "k"), [("eagle3", 2), ("p-eagle", 9), (None, 0)])
def test_whatever_wins_is_planned(drafter: str | None, k: int) -> None:
    made = planned(with_winner(verdict(), drafter, k))
    assert (made.drafter.name if made.drafter else None) == drafter
    assert (made.speculation.k if made.speculation else 0) == k
    reasons = [reason for reason in made.reasons if reason.code == "best-in-verdict"]
    assert [reason.what for reason in reasons] == (["drafter", "k"] if drafter else ["drafter"])
    assert reasons[0].value == (drafter or "none")


@pytest.mark.parametrize(("options", "covered"), [
    ({"concurrency": 128, "instance_count": 1}, True),
    ({"concurrency": 129, "instance_count": 1}, False),
    ({"concurrency": 256, "instance_count": 2}, True),
    ({"concurrency": 8, "prompt_tokens": 4096, "output_tokens": 128}, True),
    ({"concurrency": 8, "prompt_tokens": 4097, "output_tokens": 256}, False),
    ({"concurrency": 8, "prompt_tokens": 2048, "output_tokens": 127}, False),
])  # fmt: skip
def test_a_load_that_the_verdict_does_not_cover_is_refused(
    options: dict[str, Any], covered: bool
) -> None:
    if covered:
        planned(verdict(), **options)
        return
    with raises_code("load-not-in-verdict", VerdictFileError) as caught:
        planned(verdict(), **options)
    assert caught.value.fix == "create a verdict for this load"
    assert caught.value.command[:3] == ("peagle", "verdict", "gpt-oss-20b")


OTHER = "verdict-of-another-plan"


@pytest.mark.parametrize(("changes", "options", "code", "named"), [
    ({"pair": "qwen3-8b"}, {}, OTHER, "on Qwen/Qwen3-8B, not on openai/gpt-oss-20b"),
    ({}, {"instance_type": "ml.p5.48xlarge"}, OTHER, "on L40S, not on H100"),
    ({}, {"vllm": "0.30.0"}, OTHER, "on vLLM 0.28.0, not on vLLM 0.30.0"),
    ({}, {"k": 3}, "conflicting-options", "--k and --verdict"),
    ({}, {"drafter": "eagle3"}, "conflicting-options", "--drafter and --verdict"),
    ({}, {"speculation": False}, "conflicting-options", "--no-speculation"),
])  # fmt: skip
def test_a_verdict_about_something_else_is_refused(
    changes: dict[str, Any], options: dict[str, Any], code: str, named: str
) -> None:
    with raises_code(code) as refused:
        planned(verdict(**changes), **options)
    assert named in refused.value.message
    assert refused.value.exit_code == 2


def test_the_drafter_of_the_pair_must_be_the_verdicts() -> None:
    with raises_code("conflicting-options") as refused:
        plan_by_verdict(
            Options(pair="gpt-oss-20b+eagle3"), with_winner(verdict(), "p-eagle", 3), FILE, CATALOG
        )
    assert "--drafter p-eagle" in refused.value.message


def test_a_pair_without_a_floor_gets_the_break_even_length() -> None:
    made = make_plan(Options(pair="gpt-oss-20b+ngram", instance_type="ml.g6e.xlarge"), CATALOG)
    assert made.speculation is not None
    assert made.speculation.acceptance_floor is not None
    assert 1 < made.speculation.acceptance_floor < made.speculation.k + 1
    assert made.speculation.acceptance_floor_source == "break-even"


@pytest.mark.thorough
@pytest.mark.parametrize(("changes", "options"), [
    ({"pair": "qwen3-8b"}, ()),
    ({}, ("--instance-type", "ml.p5.48xlarge")),
    ({}, ("--vllm", "0.30.0")),
])  # fmt: skip
def test_the_printed_command_creates_a_verdict_that_fits(
    changes: dict[str, Any], options: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "verdict.json"
    path.write_bytes(verdict_bytes(verdict(**changes)))
    refused = in_process("plan", "gpt-oss-20b", *options, "--verdict", str(path), "--json")
    command = json.loads(refused.err)["error"]["command"]
    assert in_process(*command[1:]).code == 0
    done = in_process("plan", "gpt-oss-20b", *options, "--verdict", str(path), "--json")
    assert done.code == 0, done.err


# The verdict on pairs of the catalogue: what is compared, on which instance, and what is missing.
MEASURED = VerdictOptions(pair="gpt-oss-20b", gpu="H200", vllm="0.26.0")
SHORT = {"requests": WORKLOADS["short-prompt"]}


def measured(**changes: Any) -> VerdictOptions:
    return MEASURED.model_copy(update=changes)


def best(verdict: Verdict, size: int = 0) -> dict[float, Setting | None]:
    return {load.concurrency: load.best for load in verdict.workloads[size].loads}


def test_a_named_drafter_is_compared_alone() -> None:
    verdict = make_verdict(measured(pair="gpt-oss-20b+eagle3"), CATALOG)
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
    assert any("ngram" in text for text in verdict.changes)


@pytest.mark.thorough
def test_a_head_drafts_nothing_in_longer_requests_than_it_supports() -> None:
    target = CATALOG.targets["openai/gpt-oss-20b"]
    drafters = tuple(
        drafter.model_copy(update={"max_positions": 4096}) for drafter in target.drafters
    )
    short = target.model_copy(update={"drafters": drafters})
    catalog = replace(CATALOG, targets={target.id: short})
    sizes = {"below": Workload(3000, 500), "above": Workload(4000, 500)}
    verdict = make_verdict(MEASURED, catalog, sizes)

    def bases(size: int) -> set[str]:
        loads = verdict.workloads[size].loads
        speeds = (speed for load in loads for speed in load.speeds)
        return {speed.basis for speed in speeds if speed.setting.drafter == "p-eagle"}

    assert (bases(0), bases(1)) == ({"estimated"}, {"unknown"})


@pytest.mark.thorough
def test_the_acceptance_that_evidence_measured_on_another_device_counts() -> None:
    with bundled_evidence():
        verdict = make_verdict(VerdictOptions(pair="tiny+p-eagle", gpu="L4"), load_catalog())
    speeds = [row for load in verdict.workloads[0].loads for row in load.speeds if row.setting.k]
    assert {speed.acceptance_basis for speed in speeds} == {"measured"}
    assert all(speed.basis == "estimated" for speed in speeds)
    assert not any("no acceptance is known" in text for text in verdict.changes)


def test_a_gpu_is_compared_with_as_many_as_hold_a_drafter_too() -> None:
    # Two A100, and all A10G of ml.g5.12xlarge, hold the target alone.
    for gpu, gpus, on in (("A100", 4, "ml.p4d.24xlarge"), ("A10G", 8, "ml.g5.48xlarge")):
        made = verdict(pair="gemma-4-31b", gpu=gpu, loads=(1, 8))
        assert (made.tensor_parallel_size, made.instance_type) == (gpus, on)
        assert all(load.best.k for size in made.workloads for load in size.loads)


def test_the_smallest_cheapest_instance_with_the_gpu_is_used() -> None:
    verdict = make_verdict(measured(gpu="l40s"), CATALOG, SHORT)
    assert (verdict.instance_type, verdict.gpu) == ("ml.g6e.xlarge", "L40S")
    assert verdict.usd_per_hour is not None
    first = verdict.workloads[0].loads[0].speeds[0]
    assert first.usd_per_million_tokens is not None


@pytest.mark.parametrize(("changes", "code"), [
    ({"tensor_parallel_size": 3}, "tensor-parallel"),
    ({"vllm": "0.1.0"}, "vllm-below-minimum"),
    ({"prompt_tokens": 10**6, "output_tokens": 1}, "requests-above-context"),
    ({"region": "mars-1"}, "region-unknown"),
])  # fmt: skip
def test_an_impossible_request_has_one_clear_error(changes: dict[str, object], code: str) -> None:
    with raises_code(code):
        make_verdict(measured(**changes), CATALOG)


@pytest.mark.thorough
def test_the_choice_is_within_three_percent_of_the_best_measured_one() -> None:
    """Of all bundled evidence, at each measured load; an estimate wins only if it is clearly
    faster."""
    with bundled_evidence():
        catalog = load_catalog()
        runs = [
            (name, run)
            for name, measured in catalog.speeds.items()
            for run in measured
            if run.speeds
        ]
        for target, run in runs:
            sizes = {
                (row.prompt_tokens or 0, row.output_tokens or 0)
                for row in run.speeds
                if not row.cached_prompt_tokens
            }
            options = VerdictOptions(
                pair=target,
                gpu=run.gpu,
                tensor_parallel_size=run.tensor_parallel_size,
                vllm=run.vllm,
                loads=tuple({row.concurrency for row in run.speeds}),
            )
            workloads = {f"{size}": Workload(*size) for size in sizes}
            for size in make_verdict(options, catalog, workloads).workloads:
                for load in size.loads:
                    _check_choice(run, size, load)


def _check_choice(run: SpeedRun, size: WorkloadVerdict, load: LoadVerdict) -> None:
    # Of two engines, the one whose CUDA graphs just hold the load, as in a plan.
    rows = {
        (row.drafter, row.k): row.output_tokens_per_second
        for row in sorted(run.speeds, key=lambda row: -(row.max_cudagraph_capture_size or 0))
        if load.concurrency * (row.k + 1) <= (row.max_cudagraph_capture_size or 1024)
        and (row.prompt_tokens, row.output_tokens) == (size.prompt_tokens, size.output_tokens)
        and row.concurrency == load.concurrency
    }
    chosen = load.speed(load.best)
    if not rows:
        return
    assert chosen is not None
    speed = chosen.tokens_per_second or 0
    if chosen.basis == "measured":
        assert speed >= 0.97 * max(rows.values()), run.file
    else:
        assert speed > 1.03 * max(rows.values()), run.file


def test_one_measured_gpu_does_not_hide_an_engine_on_eight() -> None:
    """Gemma 4 was measured on one H200, whose speed is below the target's alone on eight."""
    options = Options(pair="gemma-4-31b", instance_type="ml.p5en.48xlarge", copies=1, concurrency=8)
    with bundled_evidence():
        made = make_plan(options, load_catalog())
    assert made.fit.tensor_parallel_size == 8
    alone = made.without_speculation
    assert alone
    assert (made.speed.tokens_per_second or 0) > (alone.tokens_per_second or 0) > 0
