"""The next measuring session: what it starts with, and how its rows come into the evidence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import evidence
from benchmarks.gpu.memory import left
from benchmarks.gpu.rows import settings

ROOT = Path(__file__).resolve().parents[3]
REFUSED = "Value error, max_num_scheduled_tokens is set to -1"


def document(rows: list[dict[str, Any]]) -> dict[str, Any]:
    note = {"engine": {"version": "0.26.0"}, "date": "2026-01-01", "notes": ["kept"]}
    return {**note, "rows": rows, "log_rows": [{"name": "logged", "host": 2, "ranks": []}]}


def row(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "ranks": [{}], "logged": {"kv_cache_tokens": 1.0}, **more}


def test_a_session_starts_with_what_was_not_measured(tmp_path: Path) -> None:
    known = evidence.measured(evidence.read(evidence.EVIDENCE))
    rows = left(tmp_path, "", known)
    assert not {row.name for row in rows} & known
    assert "gemma-4-31b" not in {row.pair for row in rows if row.tensor_parallel_size == 1}
    assert {row.max_num_batched_tokens for row in rows[:6]} == {2048, 16384, 32768}
    assert any(row.tensor_parallel_size == 2 for row in rows)
    assert len(rows) < len(settings())


def test_what_a_folder_has_is_not_run_again(tmp_path: Path) -> None:
    first, second, *_ = settings()
    lines = [{"name": first.name}, {"name": second.name, "error": "timeout"}]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert left(tmp_path, "", set())[0] == second


def test_without_new_rows_the_evidence_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "evidence.json"
    path.write_bytes(evidence.EVIDENCE.read_bytes())
    evidence.write(path, evidence.merged(evidence.read(path), []))
    assert path.read_bytes() == evidence.EVIDENCE.read_bytes()


def test_new_rows_join_the_old_ones() -> None:
    old = document([row("a", host=1), row("b", host=1, incomplete="no graphs")])
    new = [
        row("b", vllm="0.26.0+cu130"),
        row("c", error="exit code 1"),
        row("d", error="exit code 1", logged={}, ranks=[], log_tail=f"x\n  {REFUSED} [type=x]"),
        row("e", error="timeout", logged={}, ranks=[], log_tail="loading"),
    ]
    merged = evidence.merged(old, new)
    assert merged["notes"] == ["kept"]
    assert merged["log_rows"] == old["log_rows"]
    rows = {row["name"]: row for row in merged["rows"]}
    assert list(rows) == ["a", "b", "c", "d"], "e reached nothing"
    assert rows["b"] == row("b", host=3), "complete now, of a third host"
    assert "no CUDA graphs" in rows["c"]["incomplete"]
    assert rows["d"]["error"] == f"refused: {REFUSED}"
    assert "log_tail" not in rows["d"]
    assert merged["date"] > old["date"]
    again = evidence.merged(merged, [row("a", error="exit code 1")])
    assert again["rows"] == merged["rows"], "a complete row does not give way to less"


@pytest.mark.parametrize(
    ("last", "kept"),
    [
        (f"{REFUSED} [type=value_error]", REFUSED),
        ("NotImplementedError: FlashInfer backend on SM90", "NotImplementedError: FlashInfer"),
    ],
)
def test_a_refusal_is_kept_and_a_crash_is_not(last: str, kept: str) -> None:
    refused = row("a", error="exit code 1", logged={}, log_tail=f"Traceback\n{last}\n")
    (found,) = evidence.merged(document([]), [refused])["rows"]
    assert found["error"].startswith(f"refused: {kept}")
    crashed = row("a", error="exit code 1", logged={}, log_tail="Segmentation fault")
    assert evidence.merged(document([]), [crashed])["rows"] == []


def test_what_came_before_the_refusal_is_kept_with_it() -> None:
    late = row("a", error="exit code 1", log_tail="NotImplementedError: too late")
    (found,) = evidence.merged(document([]), [late])["rows"]
    assert (found["ended_with"], "error" in found) == ("NotImplementedError: too late", False)


def test_rows_of_another_vllm_are_not_mixed_in() -> None:
    with pytest.raises(ValueError, match=r"0\.28\.0"):
        evidence.merged(document([]), [row("a", vllm="0.28.0")])


_ENGINE = """
import importlib
from pathlib import Path
import benchmarks.gpu.memory, benchmarks.gpu.row
from benchmarks.gpu import probe
probe.install = lambda stem, own: print("installed", stem.name, own)
said = probe.announce(Path("row"), ("lm_head",))
"""
_AS_VLLM_DOES = """
module, _, name = said["worker_extension_cls"].rpartition(".")
getattr(importlib.import_module(module), name)
"""


def test_a_worker_in_the_process_of_the_engine_gets_the_probe() -> None:
    """One GPU: vLLM imports the class that it was told of where the row was begun."""
    assert _said(_ENGINE + _AS_VLLM_DOES) == "installed row ['lm_head']\n"


def test_a_worker_in_a_process_of_its_own_gets_the_probe() -> None:
    """Several GPUs: each worker is spawned, and knows the environment alone."""
    worker = """
from benchmarks.gpu import probe
probe.install = lambda stem, own: print("spawned", stem.name, own)
import benchmarks.gpu.extension
"""
    spawn = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {worker!r}])"
    assert _said(_ENGINE + spawn) == "spawned row ['lm_head']\n"


def _said(program: str) -> str:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
