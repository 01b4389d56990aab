"""What the measured warm starts show, and that the README says the same."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import warm_evidence
from benchmarks.gpu.warm_places import PAIRS

GOAL = 4.0
"""Times faster than cold that an engine starts from an artefact, on a fresh machine."""
README = Path(__file__).resolve().parents[3] / "README.md"
TITLES = {"gpt-oss-20b": "GPT-OSS-20B, P-EAGLE", "qwen3-coder-30b": "Qwen3-Coder-30B-A3B, P-EAGLE"}


def document() -> Any:
    return json.loads(warm_evidence.EVIDENCE.read_text())


def start(pair: str, machine: str, kind: str) -> Any:
    (found,) = (
        one
        for one in document()["runs"][machine]["starts"]
        if (one["pair"], one["kind"]) == (pair, kind)
    )
    return found


def test_the_summary_is_made_of_the_starts() -> None:
    found = document()
    assert warm_evidence.summary(found["runs"]) == found["summary"]


def test_the_second_machine_was_a_fresh_one_of_the_same_kind() -> None:
    first, second = (document()["runs"][step]["machine"] for step in ("first", "second"))
    assert first.pop("boot") != second.pop("boot")
    assert first == second


@pytest.mark.parametrize("pair", PAIRS)
def test_a_fresh_machine_starts_from_the_artefact_and_compiles_no_kernel(pair: str) -> None:
    """vLLM saves its compiled functions again, after loading them; ninja writes its log."""
    restored = start(pair, "second", "restored")
    assert restored["engine"]["compiled_before"]
    assert set(restored["anew_bytes"]) == {"vllm", "flashinfer", "restored.json"}
    assert restored["anew_bytes"]["flashinfer"] < 1024


@pytest.mark.parametrize("pair", PAIRS)
def test_it_starts_so_many_times_faster(pair: str) -> None:
    (row,) = (
        row
        for row in document()["summary"]
        if (row["pair"], row["machine"], row["kind"]) == (pair, "second", "restored")
    )
    assert row["times_faster"]["engine_start_seconds"] >= GOAL


@pytest.mark.parametrize("pair", PAIRS)
def test_the_readme_says_what_was_measured(pair: str) -> None:
    kinds = (("first", "cold"), ("first", "kept"), ("second", "restored"))
    told = [warm_evidence.times(start(pair, *kind)) for kind in kinds]
    cells = [f"{one['engine_start_seconds']:.0f} ({one['green_seconds']:.0f})" for one in told]
    faster = [told[0][name] / told[2][name] for name in ("engine_start_seconds", "green_seconds")]
    cells.append("{:.1f} ({:.1f})".format(*faster))
    (line,) = re.findall(
        rf"^\| {TITLES[pair]}, K=\d+ \| (.*) \|$", README.read_text(), re.MULTILINE
    )
    assert line == " | ".join(cells)
