"""Results as evidence: what planning reads, what is refused, and damaged files."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peagle.bench.evidence import evidence_document, read_result, save_evidence
from peagle.bench.result import BenchRow, BenchSetting, BenchWorkload
from peagle.bench.winners import crossovers
from peagle.bench.workloads import find_workload
from peagle.catalog import load_catalog
from peagle.catalog.loading import check_catalog
from peagle.cli.view.bench import summarize_workload
from peagle.cli.view.choose import crossover_text
from peagle.errors import UserError
from peagle.planning import Options, make_plan
from peagle.planning.verdict import VerdictOptions, make_verdict
from peagle.text import plain
from peagle.workload import Slo, Workload
from tests.support import raises_code
from tests.unit.bench.made import ALONE, K3, LONG, RESULT, ROWS, SHORT, row, two_workloads

K5 = BenchSetting("p-eagle", 5)


def test_planning_reads_what_is_saved(tmp_path: Path) -> None:
    path = save_evidence(two_workloads(), tmp_path)
    assert path.name == "speed-gpt-oss-20b-h200-vllm-0.28.0-2026-11-22.json"
    assert check_catalog(tmp_path)[1] == []
    runs = load_catalog(tmp_path).speeds["openai/gpt-oss-20b"]
    (run,) = [run for run in runs if run.file == path.name]
    assert (run.gpu, run.vllm, run.synthetic) == ("H200", "0.28.0", False)
    speeds = {(s.drafter, s.k, s.concurrency, s.prompt_tokens): s for s in run.speeds}
    speed = speeds["p-eagle", 3, 8, 128]
    assert (speed.output_tokens_per_second, speed.low, speed.high) == (3_120, 2_880, 3_120)
    assert (speed.repetitions, speed.output_tokens, speed.acceptance_length) == (3, 400, 2.568)
    assert speed.ttft_seconds
    assert speed.ttft_seconds.p99 == 0.16
    assert (None, 0, 1, 2_048) in speeds


@pytest.mark.parametrize("fastest", [ALONE, K3, K5])
@pytest.mark.parametrize("name", ["long-prompt", "conversation"])
def test_the_saved_speeds_decide_k(name: str, fastest: BenchSetting, tmp_path: Path) -> None:
    workload = find_workload(name)
    size, graphs = workload.size, 1024
    rows = [
        replace(
            row(setting, load, speed * (1.5 if setting == fastest else 1), workload),
            cached_prompt_tokens=float(max(size.cached_prompt_tokens - 16, 0)),
            max_cudagraph_capture_size=graphs,
        )
        for setting in (ALONE, K3, K5)
        for load, speed in ((1, 100.0), (8, 600.0))
    ]
    server = replace(RESULT.server, gpu="L40S")
    path = save_evidence(replace(RESULT, server=server, rows=tuple(rows)), tmp_path)
    catalog = load_catalog(tmp_path)
    (run,) = [run for run in catalog.speeds["openai/gpt-oss-20b"] if run.file == path.name]
    cached = max(size.cached_prompt_tokens - 16, 0)
    assert {speed.cached_prompt_tokens for speed in run.speeds} == {cached}
    assert {speed.max_cudagraph_capture_size for speed in run.speeds} == {graphs}
    sizes = {key: getattr(size, key) for key in ("prompt_tokens", "output_tokens")}
    cached_tokens = size.cached_prompt_tokens or None
    on = Options(pair="gpt-oss-20b", instance_type="ml.g6e.2xlarge", concurrency=8)
    made = make_plan(
        on.model_copy(update={**sizes, "cached_prompt_tokens": cached_tokens}), catalog
    )
    assert (made.speed.basis, path.name in made.speed.source) == ("measured", True)
    assert (made.speculation.k if made.speculation else 0) == fastest.k


def test_rows_of_which_the_hits_are_unknown_or_with_pauses_are_no_evidence() -> None:
    workload = find_workload("conversation")
    unknown = row(K3, 8, 600.0, workload)
    paused = replace(
        row(K3, 8, 600.0, replace(workload, think_seconds=1.0)), cached_prompt_tokens=6640.0
    )
    for each in (unknown, paused):
        with raises_code("not-evidence", UserError):
            evidence_document(replace(RESULT, rows=(each,)))


def test_a_sweep_has_the_crossovers_of_a_verdict_on_its_evidence(tmp_path: Path) -> None:
    path = save_evidence(RESULT, tmp_path)
    catalog = load_catalog(tmp_path)
    target = "openai/gpt-oss-20b"
    runs = tuple(run for run in catalog.speeds[target] if run.file == path.name)
    # Without a model of the GPU there are no estimates of the K that were not measured.
    model = catalog.speed_model.model_copy(update={"gpus": ()})
    catalog = replace(catalog, speeds={target: runs}, speed_model=model)
    options = VerdictOptions(pair=f"{target}+p-eagle", gpu="H200", loads=(1, 8, 64))
    sizes = {"short-prompt": SHORT.size}
    (decided,) = make_verdict(options, catalog, sizes).workloads
    assert crossovers(RESULT.rows) == decided.crossovers
    text = crossover_text(crossovers(ROWS)[0])
    assert summarize_workload(ROWS).endswith(text.removeprefix("S"))


def test_a_result_of_bench_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(plain(RESULT)))
    assert read_result(path) == RESULT


def test_raw_rows_hold_each_repetition_and_no_prompts() -> None:
    workload = replace(LONG, prompts=("my secret",), digest="ab12")
    document = evidence_document(replace(RESULT, rows=(row(ALONE, 8, 100.0, workload),)))
    (raw,) = document["raw"]
    assert [repetition["output_tokens_per_second"] for repetition in raw["tries"]] == [96, 100, 104]
    assert raw["prompts_sha256"] == "ab12"
    assert "my secret" not in json.dumps(document)
    assert document["commands"][0].startswith("peagle bench gpt-oss-20b --sweep")
    assert document["script"] == "toolkit/peagle/bench/sweep.py"


def test_answers_without_a_fixed_length_are_one_size() -> None:
    workload = BenchWorkload("chat", Workload(0, 400), ("Hi",), fixed_length=False)
    rows = [
        replace(row(setting, 8, 100.0, workload), prompt_tokens=41.5) for setting in (ALONE, K3)
    ]
    rows = [replace(rows[0], output_tokens=61.0), replace(rows[1], output_tokens=64.2)]
    document = evidence_document(replace(RESULT, rows=tuple(rows)))
    assert {(s["prompt_tokens"], s["output_tokens"]) for s in document["speeds"]} == {(42, 63)}


def test_rows_that_failed_are_not_saved() -> None:
    failed = replace(ROWS[3].repetitions[0], errors=("HTTP 500",))
    rows = (
        ROWS[0],
        replace(ROWS[1], incomplete="the engine died"),
        replace(ROWS[3], repetitions=(failed,)),
    )
    assert len(evidence_document(replace(RESULT, rows=rows))["speeds"]) == 1
    unknown: list[dict[str, Any]] = [{"pair": None}, {"vllm": None}, {"where": "sandbox"}]
    for result in (
        replace(RESULT, rows=rows[1:]),
        *(replace(RESULT, server=replace(RESULT.server, **facts)) for facts in unknown),
    ):
        with raises_code("not-evidence"):
            evidence_document(result)


def test_the_summary_names_the_fastest_setting_and_the_one_within_an_objective() -> None:
    rows: tuple[BenchRow, ...] = (row(K3, 1, 5.0), row(K3, 2, 9.0))
    assert summarize_workload(rows) == "Fastest: p-eagle K=3 at 1 to 2 requests."
    assert "p-eagle K=3 serves up to 8 concurrent" in summarize_workload(ROWS, Slo(ttft=0.1))
    assert summarize_workload(ROWS, Slo(ttft=1e-9)).endswith("no setting meets it.")
    slow = replace(rows[0].repetitions[0], seconds=2 * rows[0].repetitions[0].seconds)
    unsteady = replace(rows[0], repetitions=(slow, *rows[0].repetitions[1:]))
    assert summarize_workload((unsteady,)).endswith("add --repetitions.")


def speed(change: dict[str, Any]) -> Callable[[dict[str, Any]], object]:
    return lambda document: document["rows"][3].update(change)


@pytest.mark.parametrize(("damage", "message"), [
    (lambda document: document.pop("rows"), "rows"),
    (lambda document: document.update(rows=5), "rows"),
    (speed({"acceptance": {"length": 4.5, "per_position": [], "drafts": 1}}), "4.5 with k 3"),
    (speed({"acceptance": {"length": 0.5, "per_position": [], "drafts": 1}}), "Input should"),
    (speed({"setting": {"drafter": "p-eagle", "k": -3}}), "Input should"),
])  # fmt: skip
def test_a_damaged_result_is_one_error(
    damage: Callable[[dict[str, Any]], object], message: str, tmp_path: Path
) -> None:
    document = json.loads(json.dumps(plain(RESULT)))
    damage(document)
    path = tmp_path / "result.json"
    path.write_text(json.dumps(document))
    with raises_code("damaged-result", UserError) as refused:
        read_result(path)
    assert message in refused.value.message
    for text in ("", "{", "[]", "{}", '{"speeds": []}', '{"rows": [NaN]}'):
        path.write_text(text)
        with raises_code("damaged-result", UserError):
            read_result(path)
    with raises_code("damaged-result", UserError):
        read_result(tmp_path / "missing.json")
