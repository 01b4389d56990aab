"""The rows that a memory measurement starts with, and how its results join the evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from measurements.gpu import evidence
from measurements.gpu.geometry import memory_settings
from measurements.gpu.memory import remaining

REFUSED = "Value error, max_num_scheduled_tokens is set to -1"


def document(rows: list[dict[str, Any]]) -> dict[str, Any]:
    note = {"engine": {"version": "0.26.0"}, "date": "2026-01-01", "notes": ["kept"]}
    return {**note, "rows": rows, "log_rows": [{"name": "logged", "host": 2, "ranks": []}]}


def row(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "ranks": [{}], "logged": {"kv_cache_tokens": 1.0}, **more}


def test_a_measurement_starts_with_the_missing_rows(tmp_path: Path) -> None:
    present = evidence.measured(evidence.read(evidence.MEMORY_EVIDENCE))
    rows = remaining(tmp_path, "", present)
    assert not {row.name for row in rows} & present
    assert "gemma-4-31b" not in {row.pair for row in rows if row.tensor_parallel_size == 1}
    assert {row.max_num_batched_tokens for row in rows[:6]} == {2048, 16384, 32768}
    assert any(row.tensor_parallel_size == 2 for row in rows)
    assert len(rows) < len(memory_settings())


def test_without_new_rows_the_evidence_is_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "evidence.json"
    path.write_bytes(evidence.MEMORY_EVIDENCE.read_bytes())
    evidence.write(path, evidence.merge_rows(evidence.read(path), []))
    assert path.read_bytes() == evidence.MEMORY_EVIDENCE.read_bytes()


def test_new_rows_join_the_old_ones() -> None:
    old = document([row("a", host=1), row("b", host=1, incomplete="no graphs")])
    new = [
        row("b", vllm="0.26.0+cu130"),
        row("c", error="exit code 1"),
        row("d", error="exit code 1", logged={}, ranks=[], log_tail=f"x\n  {REFUSED} [type=x]"),
        row("e", error="timeout", logged={}, ranks=[], log_tail="loading"),
    ]
    merged = evidence.merge_rows(old, new)
    assert merged["notes"] == ["kept"]
    assert merged["log_rows"] == old["log_rows"]
    rows = {row["name"]: row for row in merged["rows"]}
    assert list(rows) == ["a", "b", "c", "d"], "e has no result"
    assert rows["b"] == row("b", host=3), "now complete, from a third host"
    assert "no CUDA graphs" in rows["c"]["incomplete"]
    assert rows["d"]["error"] == f"refused: {REFUSED}"
    assert "log_tail" not in rows["d"]
    assert merged["date"] > old["date"]
    again = evidence.merge_rows(merged, [row("a", error="exit code 1")])
    assert again["rows"] == merged["rows"], "an incomplete row does not replace a complete one"


def test_rows_of_another_vllm_or_gpu_are_not_mixed_in() -> None:
    with pytest.raises(ValueError, match=r"0\.28\.0"):
        evidence.merge_rows(document([]), [row("a", vllm="0.28.0")])
    of_h200 = {**document([]), "device": "NVIDIA H200"}
    with pytest.raises(ValueError, match="NVIDIA H100"):
        evidence.merge_rows(of_h200, [row("a", ranks=[{"device": "NVIDIA H100"}])])


def test_evidence_of_another_gpu_starts_from_nothing() -> None:
    measured = row("a", vllm="0.28.0", torch="2.13.0", driver="580.1",
                   ranks=[{"device": "NVIDIA L4"}])  # fmt: skip
    crashed = row("b", ranks=[], error="exit code 1")
    merged = evidence.merge_rows(evidence.new_memory_document([crashed, measured]), [measured])
    assert (merged["engine"]["version"], merged["device"]) == ("0.28.0", "NVIDIA L4")
    assert merged["driver"] == "580.1"
    assert [each["name"] for each in merged["rows"]] == ["a"]
    with pytest.raises(ValueError, match="no row"):
        evidence.new_memory_document([crashed])


# The order of memory rows, and the CPUs of several streams.
