"""Warm-start measurements: the environment of a container, and what the evidence shows."""

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
from peagle_serve.command import command


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


# The measured warm starts meet the goal, and the documents have the same numbers.
GOAL = 4.0
"""How many times faster than cold an engine starts from an artifact, on a fresh machine."""
CHAPTER = Path(__file__).resolve().parents[3] / "docs" / "weights.md"
TITLES = {"gpt-oss-20b": "GPT-OSS-20B, P-EAGLE", "qwen3-coder-30b": "Qwen3-Coder-30B-A3B, P-EAGLE"}


def document() -> Any:
    return json.loads(warm_evidence.WARM_EVIDENCE.read_text())


def start(pair: str, machine: str, kind: str) -> Any:
    (match,) = (
        candidate
        for candidate in document()["runs"][machine]["starts"]
        if (candidate["pair"], candidate["kind"]) == (pair, kind)
    )
    return match


def test_the_summary_follows_from_the_starts() -> None:
    evidence = document()
    assert warm_evidence.warm_summary(evidence["runs"]) == evidence["summary"]


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
    cells = [f"{row['engine_start_seconds']:.0f} ({row['green_seconds']:.0f})" for row in times]
    faster = [times[0][name] / times[2][name] for name in ("engine_start_seconds", "green_seconds")]
    cells.append("{:.1f} ({:.1f})".format(*faster))
    (line,) = re.findall(
        rf"^\| {TITLES[pair]}, K=\d+ \| (.*) \|$", CHAPTER.read_text(), re.MULTILINE
    )
    assert line == " | ".join(cells)
