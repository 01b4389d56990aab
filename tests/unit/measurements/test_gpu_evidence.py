"""Measurements on a GPU become evidence, and the documents have the same numbers."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from measurements.gpu import evidence, warm_evidence
from measurements.gpu.container import PAIRS
from measurements.speed_rows import EVIDENCE, rows
from peagle.bench.evidence import save_evidence
from peagle.catalog.evidence import read_run
from tests.unit.bench.made import RESULT

REFUSED = "Value error, max_num_scheduled_tokens is set to -1"


def memory_document(rows: list[dict[str, Any]]) -> dict[str, Any]:
    note = {"engine": {"version": "0.26.0"}, "date": "2026-01-01", "notes": ["kept"]}
    return {**note, "rows": rows, "log_rows": [{"name": "logged", "host": 2, "ranks": []}]}


def memory_row(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "ranks": [{}], "logged": {"kv_cache_tokens": 1.0}, **more}


def test_new_rows_join_the_old_ones() -> None:
    old = memory_document(
        [memory_row("a", host=1), memory_row("b", host=1, incomplete="no graphs")]
    )
    new = [
        memory_row("b", vllm="0.26.0+cu130"),
        memory_row("c", error="exit code 1"),
        memory_row(
            "d", error="exit code 1", logged={}, ranks=[], log_tail=f"x\n  {REFUSED} [type=x]"
        ),
        memory_row("e", error="timeout", logged={}, ranks=[], log_tail="loading"),
    ]
    merged = evidence.merge_rows(old, new)
    assert merged["notes"] == ["kept"]
    assert merged["log_rows"] == old["log_rows"]
    by_name = {row["name"]: row for row in merged["rows"]}
    assert list(by_name) == ["a", "b", "c", "d"], "e has no result"
    assert by_name["b"] == memory_row("b", host=3), "now complete, from a third host"
    assert "no CUDA graphs" in by_name["c"]["incomplete"]
    assert by_name["d"]["error"] == f"refused: {REFUSED}"
    assert "log_tail" not in by_name["d"]
    assert merged["date"] > old["date"]
    again = evidence.merge_rows(merged, [memory_row("a", error="exit code 1")])
    assert again["rows"] == merged["rows"], "an incomplete row does not replace a complete one"


def test_rows_of_another_vllm_or_gpu_are_not_mixed_in() -> None:
    with pytest.raises(ValueError, match=r"0\.28\.0"):
        evidence.merge_rows(memory_document([]), [memory_row("a", vllm="0.28.0")])
    of_h200 = {**memory_document([]), "device": "NVIDIA H200"}
    with pytest.raises(ValueError, match="NVIDIA H100"):
        evidence.merge_rows(of_h200, [memory_row("a", ranks=[{"device": "NVIDIA H100"}])])


# The evidence of speeds from the rows of a measurement.
SECONDS = {"mean": 0.1, "p50": 0.1, "p90": 0.1, "p99": 0.2}
TRY = {"output_tokens_per_second": 2.0, "acceptance_length": 2.0, "ttft_seconds": SECONDS,
       "itl_seconds": SECONDS, "tpot_seconds": SECONDS}  # fmt: skip
ROW: dict[str, Any] = {
    "pair": "gpt-oss-20b", "device": "NVIDIA H100 80GB HBM3", "drafter": "p-eagle", "k": 3,
    "workload": "short-prompt", "concurrency": 1, "prompt_tokens": 128, "output_tokens": 400,
    "tries": [TRY, {**TRY, "output_tokens_per_second": 3.0}], "vllm": "0.28.0+cu130",
    "measured": "2026-11-22T09:49:45+00:00", "torch": "2.13.0+cu130", "driver": "580.1",
    "tensor_parallel_size": 1, "temperature": 1.0, "biases": "zero", "drafted_tokens": "random",
    "host": {"cpus": 16}, "command": "python -m measurements.gpu.speed",
}  # fmt: skip
ALONE = {**ROW, "drafter": None, "k": 0, "tries": [{**TRY, "acceptance_length": None}]}


def speed_document(folder: Path, *rows: dict[str, Any]) -> dict[str, Any]:
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return evidence.speed_document([folder])


def test_the_catalogue_reads_it_with_interval_and_latencies(tmp_path: Path) -> None:
    long = {"prompt_tokens": 2048, "output_tokens": 256}
    path = tmp_path / "speed.json"
    evidence.write(
        path, speed_document(tmp_path, {**ROW, **long}, {**ROW, "tries": [TRY]}, ALONE, ROW)
    )
    run = read_run(path)
    assert run
    assert [(row.k, row.prompt_tokens, row.high) for row in run.speeds] == [
        (0, 128, 2),
        (3, 128, 3),
        (3, 2048, 3),
    ]
    assert run.speeds[0].itl_seconds
    assert run.speeds[0].itl_seconds.p99 == 0.2
    assert len(path.read_text().splitlines()) < 50


@pytest.mark.parametrize("other", [
    {"temperature": 0.0},
    {"driver": "581.0"},
    {"device": "NVIDIA H200"},
    {"pair": "gpt-oss-120b"},
])  # fmt: skip
def test_it_is_from_one_pair_gpu_and_software(other: dict[str, Any], tmp_path: Path) -> None:
    (value,) = other.values()
    with pytest.raises(ValueError, match=str(value)):
        speed_document(tmp_path, ROW, {**ROW, **other})


def test_results_that_users_save_are_no_rows_of_the_performance_model(tmp_path: Path) -> None:
    folder = save_evidence(RESULT, tmp_path).parent
    assert rows(folder) == []
    ours = EVIDENCE / "speed-gpt-oss-20b-h200.json"
    (folder / "speed-ours.json").write_bytes(ours.read_bytes())
    assert {row.file for row in rows(folder)} == {"speed-ours.json"}


# The documents have the numbers of the measured warm starts.
CHAPTER = Path(__file__).resolve().parents[3] / "docs" / "weights.md"
TITLES = {"gpt-oss-20b": "GPT-OSS-20B, P-EAGLE", "qwen3-coder-30b": "Qwen3-Coder-30B-A3B, P-EAGLE"}


def warm_document() -> Any:
    return json.loads(warm_evidence.WARM_EVIDENCE.read_text())


def start(pair: str, machine: str, kind: str) -> Any:
    (match,) = (
        candidate
        for candidate in warm_document()["runs"][machine]["starts"]
        if (candidate["pair"], candidate["kind"]) == (pair, kind)
    )
    return match


def test_the_summary_follows_from_the_starts() -> None:
    evidence = warm_document()
    assert warm_evidence.warm_summary(evidence["runs"]) == evidence["summary"]


@pytest.mark.parametrize("pair", PAIRS)
def test_the_documents_have_the_measured_numbers(pair: str) -> None:
    kinds = (("first", "cold"), ("first", "kept"), ("second", "restored"))
    times = [warm_evidence.start_times(start(pair, *kind)) for kind in kinds]
    cells = [f"{row['engine_start_seconds']:.0f} ({row['green_seconds']:.0f})" for row in times]
    faster = [times[0][name] / times[2][name] for name in ("engine_start_seconds", "green_seconds")]
    cells.append("{:.1f} ({:.1f})".format(*faster))
    (line,) = re.findall(
        rf"^\| {TITLES[pair]}, K=\d+ \| (.*) \|$", CHAPTER.read_text(), re.MULTILINE
    )
    assert line == " | ".join(cells)
