"""The evidence of warm starts: how the results of ``warm`` become a document."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from measurements.gpu.evidence import FOLDER, Document
from measurements.gpu.logs import without_folders

WARM_EVIDENCE = FOLDER / "warm-starts-h200.json"

WARM_METHOD = (
    "Starts of peagle_serve with real geometry (catalog configs) and dummy weights, K from the"
    " head's card. green_seconds: from the start of the entrypoint until /ping answers 200, which"
    " needs a draft; healthy_seconds: the same from the start of vLLM, from the entrypoint's log;"
    " engine.engine_start_seconds: vLLM's own count (profiling, KV cache, warm-up, CUDA graphs)."
    " first, one machine: cold with PEAGLE_WARM=collect, kept with the same caches, restored from"
    " the artifact with all caches removed. second, a fresh machine: restored from that artifact,"
    " then cold with PEAGLE_WARM=off. runs"
    " lists the starts that were made (--kinds selects them); cold_machine names the machine whose"
    " cold start is compared. The goal, four times faster on the second machine, is for"
    " engine_start_seconds. Home, temporary files and caches are empty before each start except"
    " kept; the artifact is on the machine's own disk; Python's bytecode and vLLM's files are in"
    " the page cache. anew_bytes: written although caches existed (vLLM saves its compiled"
    " functions again after loading them); elsewhere_bytes: written outside an artifact's caches."
)

TIMES = ("green_seconds", "healthy_seconds", "engine_start_seconds")


def warm_document(folders: Sequence[Path], rehearsal: bool = False) -> Document:
    """The document of the warm starts in these folders; a step may consist of several runs.

    Raises ValueError for results that do not belong together: no first run, one step on two
    machines, different versions, or (except for a ``rehearsal``) both steps on one machine.
    """
    runs: dict[str, Document] = {}
    for path in (path for folder in folders for path in sorted(folder.glob("warm-*.json"))):
        run = json.loads(path.read_text())
        before = runs.setdefault(run["step"], {**run, "starts": []})
        if before["machine"] != run["machine"]:
            raise ValueError(f"{path}: step {run['step']} ran on two machines")
        before["starts"] += [
            {**start, "log": [without_folders(line) for line in start.get("log", ())]}
            for start in run["starts"]
        ]
    if "first" not in runs:
        raise ValueError("these folders contain no warm-first.json")
    machine = runs["first"]["machine"]
    if "second" in runs:
        _check_same_kind(machine, runs["second"]["machine"], rehearsal)
    begins = [start["begin"] for run in runs.values() for start in run["starts"]]
    return {
        "date": max(begins)[:10],
        "engine": {"name": "vllm", "version": machine["vllm"]},
        "device": machine["device"],
        "driver": machine["driver"],
        "torch": machine["torch"],
        "script": "measurements/gpu/warm.py",
        "method": WARM_METHOD,
        "summary": warm_summary(runs),
        "runs": runs,
    }


def warm_summary(runs: dict[str, Document]) -> list[Document]:
    """For each pair and machine: warm and cold durations, and how many times faster warm is.

    The cold start is the same machine's, or else that of the machine that made the artifact.
    """
    by = {
        (step, start["pair"], start["kind"]): start_times(start)
        for step, run in runs.items()
        for start in run["starts"]
        if "error" not in start
    }
    rows = []
    for (step, pair, kind), seconds in by.items():
        cold = by.get((step, pair, "cold")) or by.get(("first", pair, "cold"))
        if kind != "cold" and cold:
            is_cold = (step, pair, "cold") in by
            faster = {
                name: round(cold[name] / value, 2)
                for name, value in seconds.items()
                if name in cold and value
            }
            rows.append({"pair": pair, "machine": step, "kind": kind, "warm": seconds,
                          "cold": cold, "cold_machine": step if is_cold else "first",
                          "times_faster": faster})  # fmt: skip
    return rows


def start_times(start: Document) -> dict[str, float]:
    """The measured durations of one start: those of ``TIMES`` that it has, in seconds."""
    values = {**start, **start.get("engine", {})}
    return {name: values[name] for name in TIMES if name in values}


def _check_same_kind(first: Document, second: Document, rehearsal: bool) -> None:
    for name in ("vllm", "torch", "device", "driver"):
        if first[name] != second[name]:
            raise ValueError(f"the runs differ in {name}: {first[name]}, {second[name]}")
    if first["boot"] == second["boot"] and not rehearsal:
        raise ValueError("both runs are from one machine, so the second machine was not fresh")
