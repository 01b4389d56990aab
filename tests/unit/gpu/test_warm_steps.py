"""The steps of a warm-start measurement on two machines, with a fake container."""

from __future__ import annotations

import itertools
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from measurements.gpu import warm_evidence
from measurements.gpu.container import PAIRS, PairFolder
from measurements.gpu.logs import start_facts
from peagle_serve.command import command


def results(step: str, **machine: str) -> dict[str, Any]:
    here = {"boot": step, "vllm": "0.26.0", "torch": "2.11.0", "device": "H200", "driver": "580"}
    start = {"pair": "p", "kind": "cold", "begin": "2026-11-22T10:00:00", "green_seconds": 80.0}
    return {"step": step, "machine": here | machine, "starts": [start]}


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (results("second", boot="first"), "was not fresh"),
        (results("second", driver="581"), "differ in driver: 580, 581"),
        (results("first", boot="other"), "step first ran on two machines"),
    ],
)
def test_results_that_do_not_belong_together_are_refused(
    second: dict[str, Any], message: str, tmp_path: Path
) -> None:
    for name, run in (("a", results("first")), ("b", second)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "warm-x.json").write_text(json.dumps(run))
    with pytest.raises(ValueError, match=message):
        warm_evidence.warm_document([tmp_path / "a", tmp_path / "b"])


def test_a_failed_start_is_not_compared() -> None:
    run = results("first")
    run["starts"].append({**run["starts"][0], "kind": "restored", "error": "not ready"})
    assert warm_evidence.warm_summary({"first": run}) == []


# The environment of a container, the files that it writes, and the times in its log.
@pytest.mark.parametrize("pair", PAIRS)
def test_the_entrypoint_accepts_the_environment(pair: str, tmp_path: Path) -> None:
    folder = PairFolder(tmp_path, pair)
    folder.prepare()
    environment = folder.environment("collect", "1")
    argv = command(environment)
    values = dict(itertools.pairwise(argv))
    assert values["--model"] == str(tmp_path / pair / "ml" / "model" / "target")
    assert values["--load-format"] == "dummy"
    assert values["--worker-extension-cls"] == "measurements.gpu.extension.Probed"
    assert values["--max-model-len"] == "32768"
    root = Path(environment["PYTHONPATH"].split(os.pathsep)[0])
    assert (root / "measurements" / "gpu" / "extension.py").is_file(), "the engine imports it"
    head = json.loads(values["--speculative-config"])
    assert head["model"] == str(tmp_path / pair / "ml" / "model" / "drafter")
    assert head["parallel_drafting"] is True
    assert head["num_speculative_tokens"] == {"gpt-oss-20b": 7, "qwen3-coder-30b": 10}[pair]
    target = Path(values["--model"])
    assert (target / "tokenizer.json").is_file(), "the check for drafts sends text"


def test_the_log_gives_the_duration_of_each_part() -> None:
    log: list[dict[str, Any]] = [
        {"time": "1", "message": "warm start", "event": "warm-start", "seconds": 0.4},
        {"time": "2", "message": "init engine (profile, create kv cache, warmup model) took 18.52 s"
         " (compilation: 3.1 s)"},
        {"time": "3", "message": "Graph capturing finished in 9 secs, took 1.63 GiB"},
        {"time": "4", "message": "Route: /v1/chat/completions/render, Methods: POST"},
        {"time": "5", "message": "healthy", "event": "healthy", "seconds": 41.3},
    ]  # fmt: skip
    facts = start_facts(log)
    assert facts["restore_seconds"] == 0.4
    assert facts["healthy_seconds"] == 41.3
    assert facts["engine"]["engine_start_seconds"] == 18.52
    assert facts["engine"]["compilation_seconds"] == 3.1
    assert facts["engine"]["graph_capture_seconds"] == 9.0
    assert len(facts["log"]) == 4


# The measured warm starts meet the goal, and the documents have the same numbers.
GOAL = 4.0
"""How many times faster than cold an engine starts from an artifact, on a fresh machine."""
CHAPTER = Path(__file__).resolve().parents[3] / "docs" / "weights.md"
TITLES = {"gpt-oss-20b": "GPT-OSS-20B, P-EAGLE", "qwen3-coder-30b": "Qwen3-Coder-30B-A3B, P-EAGLE"}


def document() -> Any:
    return json.loads(warm_evidence.WARM_EVIDENCE.read_text())


def start(pair: str, machine: str, kind: str) -> Any:
    (found,) = (
        one
        for one in document()["runs"][machine]["starts"]
        if (one["pair"], one["kind"]) == (pair, kind)
    )
    return found


def test_the_summary_follows_from_the_starts() -> None:
    found = document()
    assert warm_evidence.warm_summary(found["runs"]) == found["summary"]


def test_the_second_machine_was_fresh_and_of_the_same_kind() -> None:
    first, second = (document()["runs"][step]["machine"] for step in ("first", "second"))
    assert first.pop("boot") != second.pop("boot")
    assert first == second


@pytest.mark.parametrize("pair", PAIRS)
def test_a_fresh_machine_starts_from_the_artifact_and_compiles_no_kernel(pair: str) -> None:
    """vLLM saves its compiled functions again after loading them; ninja writes its log."""
    restored = start(pair, "second", "restored")
    assert restored["engine"]["compiled_before"]
    assert set(restored["anew_bytes"]) == {"vllm", "flashinfer", "restored.json"}
    assert restored["anew_bytes"]["flashinfer"] < 1024


@pytest.mark.parametrize("pair", PAIRS)
def test_a_restored_start_meets_the_goal(pair: str) -> None:
    (row,) = (
        row
        for row in document()["summary"]
        if (row["pair"], row["machine"], row["kind"]) == (pair, "second", "restored")
    )
    assert row["times_faster"]["engine_start_seconds"] >= GOAL


@pytest.mark.parametrize("pair", PAIRS)
def test_the_documents_have_the_measured_numbers(pair: str) -> None:
    kinds = (("first", "cold"), ("first", "kept"), ("second", "restored"))
    times = [warm_evidence.start_times(start(pair, *kind)) for kind in kinds]
    cells = [f"{one['engine_start_seconds']:.0f} ({one['green_seconds']:.0f})" for one in times]
    faster = [times[0][name] / times[2][name] for name in ("engine_start_seconds", "green_seconds")]
    cells.append("{:.1f} ({:.1f})".format(*faster))
    (line,) = re.findall(
        rf"^\| {TITLES[pair]}, K=\d+ \| (.*) \|$", CHAPTER.read_text(), re.MULTILINE
    )
    assert line == " | ".join(cells)
