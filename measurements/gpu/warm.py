"""Measure how much faster an engine starts with another engine's compiled code.

Each start is one of ``peagle local up`` with the real geometry of a pair and random weights, K from
the head's card. On the first machine, with a GPU and vLLM, from the root of the repository:

    python -m measurements.gpu.warm first      # cold, and restored from what that start compiled

On another machine with the same kind of GPU, with a copy of the first one's ``$PEAGLE_HOME/warm``:

    python -m measurements.gpu.warm second     # restored, then cold
    python -m measurements.gpu.warm collect warm-first.json warm-second.json --evidence FILE

Without a GPU it rehearses with the tiny pair. Results are in ``warm-STEP.json`` after each start.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from measurements.gpu.geometry import CARD_K
from peagle.bench.workloads import WORDS
from peagle.catalog.loading import load_catalog
from peagle.catalog.tables import HERE
from peagle.engine import state
from peagle.engine.dummy import dummy_variables, with_dummy_weights
from peagle.engine.gpus import find_gpus, this_machine_in
from peagle.engine.local import start_local, stop_local
from peagle.engine.machine import find_engine, run_python
from peagle.engine.runner import LocalRunner
from peagle.options import Options
from peagle.planning import make_plan
from peagle.planning.speculation import without_floor
from peagle.store import home
from peagle.warm import COLLECTING_SUFFIX, collect_locally
from peagle_serve.contract import CACHE_VARIABLE, WARM_MODE_VARIABLE

STEPS = {"first": ("collect", "restored"), "second": ("restored", "cold")}
METHOD = (
    "Starts of peagle_serve by peagle local up, with real geometry (catalog configs) and dummy"
    " weights, K from the head's card. green_seconds: from the start until /ping answers 200 and"
    " the first request is sent; healthy_seconds: from the start of vLLM, from the entrypoint's"
    " log; engine_start_seconds: vLLM's own count (profiling, KV cache, warm-up, CUDA graphs)."
    " first, one machine: cold, and restored from what it compiled, in an empty cache; second, a"
    " fresh machine: restored from that artifact, then cold."
)
TIMES = ("green_seconds", "healthy_seconds", "engine_start_seconds")
_VERSION = "import importlib.metadata as m; print(m.version('torch'))"
Record = dict[str, Any]


def start(name: str, kind: str) -> Record:
    """Start the pair once, and stop it; its times."""
    on_gpus = find_gpus() is not None
    catalog = this_machine_in(load_catalog()) if on_gpus else load_catalog()
    options = Options(pair=name, k=CARD_K.get(name), instance_type=HERE if on_gpus else None)
    plan = without_floor(make_plan(options, catalog))
    cache = home() / "measured-cache"
    shutil.rmtree(cache, ignore_errors=True)
    variables = {CACHE_VARIABLE: str(cache)}
    if kind == "cold":
        variables[WARM_MODE_VARIABLE] = "off"
    if on_gpus:
        plan = with_dummy_weights(plan, catalog, WORDS)
        variables |= dummy_variables(plan, catalog)
    runner = LocalRunner(gpus=on_gpus, compiled=not on_gpus, variables=variables)
    plan = plan.model_copy(update={"name": f"{plan.name}-{kind}"})
    log = state.log_of(plan.name + (COLLECTING_SUFFIX if kind == "collect" else ""))
    record: Record = {
        "pair": name,
        "kind": "cold" if kind == "collect" else kind,
        "begin": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    begin = time.monotonic()

    def show(step: str, line: str) -> None:
        if step == "proving" and "green_seconds" not in record:
            record["green_seconds"] = round(time.monotonic() - begin, 2)
            record.update(read_log(log.read_text(errors="replace")))

    if kind == "collect":
        artifact = collect_locally(plan, state.warm_folder(), show, replace(runner, variables={}))
        record["artifact"] = {"key": artifact.key, "bytes": artifact.bytes}
    else:
        start_local(plan, progress=show, runner=runner)
        stop_local(plan.name, now=True)
    shutil.rmtree(cache, ignore_errors=True)
    return record


def read_log(text: str) -> Record:
    """The entrypoint's and vLLM's own times."""
    times: Record = {}
    for pattern, name in (
        (r'"event": ?"healthy", "seconds": ?([\d.]+)', "healthy_seconds"),
        (r"init engine .*? took ([\d.]+) s", "engine_start_seconds"),
        (r"init engine .*?\(compilation: ([\d.]+) s\)", "compilation_seconds"),
        (r'"event": ?"warm-start".*?"seconds": ?([\d.]+)', "restore_seconds"),
    ):
        if match := re.search(pattern, text):
            times[name] = float(match[1])
    return times


def read_machine() -> Record:
    """This machine: its boot ID tells it from others."""
    found, vllm = find_gpus(), load_catalog().runtimes.default
    engine = find_engine(vllm, gpu=found is not None)
    return {
        "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "device": found.gpus[0].name if found else "CPU",
        "driver": found.driver if found else "",
        "vllm": vllm,
        "torch": run_python(engine.python, _VERSION).partition("+")[0],
    }


def make_document(runs: dict[str, Record]) -> Record:
    """The evidence. Raises ValueError for steps of different kinds of machine, or of one."""
    machine, *others = (run["machine"] for run in runs.values())
    for other in others:
        same = {key for key in machine if machine[key] == other[key]}
        if same != machine.keys() - {"boot"}:
            raise ValueError(f"these machines have the same {', '.join(sorted(same))} only")
    starts = [start for run in runs.values() for start in run["starts"]]
    rows = []
    for step, run in runs.items():
        by_kind = {(start["pair"], start["kind"]): start for start in run["starts"]}
        for (pair, kind), warm in by_kind.items():
            if kind != "cold" and (cold := by_kind.get((pair, "cold"))):
                faster = {key: round(cold[key] / warm[key], 2) for key in TIMES if warm.get(key)}
                rows.append({"pair": pair, "machine": step, "times_faster": faster})
    return {
        "date": max(start["begin"] for start in starts)[:10],
        "engine": {"name": "vllm", "version": machine["vllm"]},
        **{key: machine[key] for key in ("device", "driver", "torch")},
        "script": "measurements/gpu/warm.py",
        "method": METHOD,
        "summary": rows,
        "runs": runs,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=(*STEPS, "collect"))
    parser.add_argument("results", type=Path, nargs="*", help="collect: warm-STEP.json")
    parser.add_argument("--pairs", default="gpt-oss-20b,qwen3-coder-30b")
    parser.add_argument("--evidence", type=Path, default=Path("warm-starts.json"))
    options = parser.parse_intermixed_args(arguments)
    if options.step == "collect":
        runs = {run["step"]: run for run in (json.loads(p.read_text()) for p in options.results)}
        options.evidence.write_text(json.dumps(make_document(runs), indent=1) + "\n")
        return
    starts: list[Record] = []
    for pair in options.pairs.split(",") if find_gpus() else ("tiny",):
        for kind in STEPS[options.step]:
            starts.append(start(pair, kind))
            print(json.dumps(starts[-1]), flush=True)
            run = {"step": options.step, "machine": read_machine(), "starts": starts}
            Path(f"warm-{options.step}.json").write_text(json.dumps(run, indent=1) + "\n")


if __name__ == "__main__":
    main()
