"""The evidence file of warm.py: what both machines wrote, and how many times faster it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.logs import without_folders

EVIDENCE = (
    Path(__file__).resolve().parents[2] / "model_catalog" / "evidence" / "warm-starts-h200.json"
)
METHOD = (
    "Starts of containers/serve with real geometry (tests/geometry) and dummy weights, K as on"
    " the head's card. green_seconds: from the start of the entrypoint until /ping answers 200,"
    " which needs a draft; healthy_seconds: the same from the start of vLLM, by the entrypoint's"
    " log; engine.engine_start_seconds: what vLLM itself counts (profiling, KV cache, warm-up,"
    " CUDA graphs). first, one machine: cold with PEAGLE_WARM=collect, then the same caches kept"
    " where they are, then all removed and restored from the artefact. second, another machine"
    " that had none of it: restored from that artefact, then cold with PEAGLE_WARM=off. Which of"
    " these ran stands under runs (a short lease takes --kinds cold,kept and --kinds restored),"
    " and cold_machine says whose cold start one is compared with. The goal, four times faster on"
    " the second machine, is of engine_start_seconds. Home, temporary files and caches are empty"
    " before each start but kept; the artefact lies on the machine's own disk, packed by gzip"
    " again after its way there; Python's bytecode and the files of vLLM are warm before all."
    " anew_bytes: written although caches were there (vLLM saves its compiled functions again"
    " after loading them); elsewhere_bytes: written to other places than the caches of an"
    " artefact."
)
TIMES = ("green_seconds", "healthy_seconds", "engine_start_seconds")

Document = dict[str, Any]


def document(folders: Sequence[Path], rehearsed: bool = False) -> Document:
    """One document of the results in these folders; a step may have taken several commands.

    Raises ValueError where they do not belong together: no first run, one step on two machines,
    other versions, or (unless it is ``rehearsed``) a second run on the machine of the first.
    """
    runs: dict[str, Document] = {}
    for path in (path for folder in folders for path in sorted(folder.glob("warm-*.json"))):
        run = json.loads(path.read_text())
        before = runs.setdefault(run["step"], {**run, "starts": []})
        if before["machine"] != run["machine"]:
            raise ValueError(f"{path}: there are two machines of the step {run['step']}")
        before["starts"] += [
            {**start, "log": [without_folders(line) for line in start.get("log", ())]}
            for start in run["starts"]
        ]
    if "first" not in runs:
        raise ValueError("no warm-first.json is in these folders")
    machine = runs["first"]["machine"]
    if "second" in runs:
        _compared(machine, runs["second"]["machine"], rehearsed)
    begins = [start["begin"] for run in runs.values() for start in run["starts"]]
    return {
        "date": max(begins)[:10],
        "engine": {"name": "vllm", "version": machine["vllm"]},
        "device": machine["device"],
        "driver": machine["driver"],
        "torch": machine["torch"],
        "script": "benchmarks/gpu/warm.py",
        "method": METHOD,
        "summary": summary(runs),
        "runs": runs,
    }


def summary(runs: dict[str, Document]) -> list[Document]:
    """For each pair and machine: the times cold and otherwise, and how many times faster.

    Cold is the same machine's start; where it had none, that of the machine that collected.
    """
    by = {
        (step, start["pair"], start["kind"]): times(start)
        for step, run in runs.items()
        for start in run["starts"]
        if "error" not in start
    }
    found = []
    for (step, pair, kind), seconds in by.items():
        cold = by.get((step, pair, "cold")) or by.get(("first", pair, "cold"))
        if kind != "cold" and cold:
            own = (step, pair, "cold") in by
            faster = {
                name: round(cold[name] / value, 2)
                for name, value in seconds.items()
                if name in cold and value
            }
            found.append({"pair": pair, "machine": step, "kind": kind, "warm": seconds,
                          "cold": cold, "cold_machine": step if own else "first",
                          "times_faster": faster})  # fmt: skip
    return found


def times(start: Document) -> dict[str, float]:
    """The three times of one start, as far as they are known."""
    said = {**start, **start.get("engine", {})}
    return {name: said[name] for name in TIMES if name in said}


def write(path: Path, found: Document) -> None:
    """The evidence file, and its summary on the terminal."""
    path.write_text(json.dumps(found, indent=1) + "\n")
    for row in found["summary"]:
        print(f"{row['pair']}, {row['machine']} machine, {row['kind']}: {row['times_faster']}")


def _compared(first: Document, second: Document, rehearsed: bool) -> None:
    for name in ("vllm", "torch", "device", "driver"):
        if first[name] != second[name]:
            raise ValueError(f"the two runs differ in {name}: {first[name]}, {second[name]}")
    if first["boot"] == second["boot"] and not rehearsed:
        raise ValueError("both runs are of one machine, so the second was not a fresh one")
