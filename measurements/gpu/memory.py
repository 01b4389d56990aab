"""Start vLLM once per setting and record the memory that it counts.

On a host with vLLM, from the root of the repository; it needs only vLLM and the standard library:

    python -m measurements.gpu.memory --only gpt-oss-20b --gpus 0,1
    python -m measurements.gpu.memory --collect .gpu/memory --evidence memory.json

Each row has a process of its own; each GPU runs one at a time. Rows are appended to
FOLDER/rows.jsonl as they are measured, a failed one with its error; those that the folder or the
evidence has are not measured again. --collect adds the rows to the evidence.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from measurements.gpu.geometry import Setting, engine_arguments, memory_settings

REPOSITORY = Path(__file__).resolve().parents[2]
PLUGIN = REPOSITORY / "toolkit" / "peagle" / "engine" / "dummy_weights"
EVIDENCE = REPOSITORY / "model_catalog" / "evidence" / "memory-h200.json"
METHOD = (
    "Starts vLLM once per row and records the memory that it counts. Real geometry (catalog"
    " configs), dummy weights, a server's usage context; raw numbers in bytes as the worker counts"
    " them."
)
ROW_SECONDS = 240.0
_NUMBERS = {
    "weights_gib": r"Model loading took ([\d.]+) GiB",
    "available_kv_cache_gib": r"Available KV cache memory: ([\d.]+) GiB",
    "kv_cache_tokens": r"GPU KV cache size: ([\d,]+) tokens",
    "max_concurrency": r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x",
    "cuda_graphs_gib": r"Graph capturing finished in [\d.]+ secs, took ([\d.]+) GiB",
    "engine_start_seconds": r"init engine .*? took ([\d.]+) s",
}
_REFUSAL = re.compile(r"(?:Value error, |NotImplementedError: ).*?(?= \[type=|$)", re.MULTILINE)
Row = dict[str, Any]


def run_row(setting: Setting, stem: Path) -> None:
    """Start the engine in this process, write its settings to a file, and exit. The probe writes
    the memory that the engine counts."""
    import torch
    import vllm
    from vllm.engine.arg_utils import EngineArgs
    from vllm.third_party import pynvml
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.executor import Executor

    pynvml.nvmlInit()
    arguments = engine_arguments(setting)
    arguments["worker_extension_cls"] = "measurements.gpu.probe.Probed"
    begin = time.perf_counter()
    config = EngineArgs(**arguments).create_engine_config(UsageContext.OPENAI_API_SERVER)
    engine = EngineCore(config, Executor.get_class(config), log_stats=False)
    used, cache = engine.vllm_config, engine.vllm_config.cache_config
    row: Row = {
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "start_seconds": round(time.perf_counter() - begin, 2),
        "effective": {
            "max_num_batched_tokens": used.scheduler_config.max_num_batched_tokens,
            "max_in_flight_tokens": getattr(used, "max_in_flight_tokens", None),
            "async_scheduling": used.scheduler_config.async_scheduling,
            "block_size": cache.block_size,
            "num_gpu_blocks": cache.num_gpu_blocks,
            "kv_cache_dtype": str(cache.cache_dtype),
            "dtype": str(used.model_config.dtype),
            "cudagraph_capture_sizes": list(used.compilation_config.cudagraph_capture_sizes or []),
            "use_v2_model_runner": getattr(used, "use_v2_model_runner", None),
        },
    }
    stem.with_name(f"{stem.name}-row.json").write_text(json.dumps(row, default=str))
    if setting.tensor_parallel_size > 1:
        engine.shutdown()
    sys.stdout.flush()
    os._exit(0)


def measure(setting: Setting, gpus: str, out: Path, end: float) -> Row:
    """Measure one row in a process of its own; the row is from the files that it wrote."""
    stem, log = out / "facts" / setting.name, out / "logs" / f"{setting.name}.log"
    paths = [str(REPOSITORY), str(PLUGIN), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": gpus,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PEAGLE_DUMMY_OWN_TENSORS": ",".join(setting.own()),
        "PEAGLE_GPU_PROBE": str(stem.resolve()),
    }
    command = [sys.executable, "-m", "measurements.gpu.memory", "--row",
               json.dumps(asdict(setting)), "--stem", str(stem)]  # fmt: skip
    seconds = max(1.0, min(ROW_SECONDS, end - time.monotonic()))
    with log.open("w") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, env=environment, start_new_session=True
        )
        try:
            error = f"exit code {code}" if (code := process.wait(seconds)) else ""
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            error = "timeout"
    text, own = log.read_text(errors="replace"), stem.with_name(f"{stem.name}-row.json")
    ranks = sorted(stem.parent.glob(f"{stem.name}-[0-9].json"))
    matches = {name: re.search(pattern, text) for name, pattern in _NUMBERS.items()}
    logged: Row = {
        name: float(match[1].replace(",", "")) for name, match in matches.items() if match
    }
    if "AOT compil" in text:
        logged["compiled_before"] = "saved AOT compiled function" not in text
    row: Row = {
        "name": setting.name,
        "setting": asdict(setting),
        "gpus": gpus,
        **(json.loads(own.read_text()) if own.exists() else {}),
        "ranks": [json.loads(rank.read_text()) for rank in ranks],
        "logged": logged,
    }
    if not error:
        return row
    if "kv_cache_tokens" in logged:
        return {**row, "incomplete": "stopped after the cache was laid out"}
    refusal = _REFUSAL.search(text)
    return {**row, "error": f"refused: {refusal[0]}" if refusal else error}


def run_all(out: Path, gpus: Sequence[str], seconds: float, rows: Sequence[Setting]) -> None:
    """Measure rows for one GPU on all of them at once, then those for all together."""
    for folder in ("facts", "logs"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    end, lock = time.monotonic() + seconds, threading.Lock()

    def work(waiting: queue.SimpleQueue[Setting], names: str) -> None:
        while not waiting.empty() and end - time.monotonic() > 25:
            try:
                row = measure(waiting.get_nowait(), names, out, end)
            except queue.Empty:
                return
            with lock, (out / "rows.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(row["name"], row["logged"], row.get("error", ""), flush=True)

    for size in dict.fromkeys((1, len(gpus))):
        waiting: queue.SimpleQueue[Setting] = queue.SimpleQueue()
        for setting in (row for row in rows if row.tensor_parallel_size == size):
            waiting.put(setting)
        names = gpus if size == 1 else [",".join(gpus)]
        threads = [threading.Thread(target=work, args=(waiting, name)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def read_rows(folders: Sequence[Path]) -> list[Row]:
    """The rows in ``rows.jsonl`` of these folders."""
    files = [folder / "rows.jsonl" for folder in folders]
    lines = [line for file in files if file.exists() for line in file.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def merge_rows(document: Mapping[str, Any], rows: Sequence[Row]) -> Row:
    """The evidence with these rows, which replace those of the same name; only a refusal by vLLM is
    kept of the failed ones. Raises ValueError for rows of another version or GPU."""
    good = [row for row in rows if row.get("error", "refused").startswith("refused")]
    first = next((row for row in good if row["ranks"] and "vllm" in row), None)
    if not document and first is None:
        raise ValueError("no row with an engine that started")
    if not document and first is not None:
        document = {
            "engine": {"name": "vllm", "version": first["vllm"].partition("+")[0]},
            "device": first["ranks"][0]["device"],
            "driver": first["driver"],
            "torch": first["torch"],
            "script": "measurements/gpu/memory.py",
            "method": METHOD,
            "rows": [],
            "log_rows": [],
        }
    version, device = document["engine"]["version"], document["device"]
    host = 1 + max((row["host"] for row in document["rows"]), default=0)
    kept = {row["name"]: row for row in document["rows"]}
    for row in good:
        others = {rank["device"] for rank in row["ranks"]} - {device}
        if others or row.get("vllm", version).partition("+")[0] != version:
            raise ValueError(f"{row['name']} is from another GPU or version than the evidence")
        facts = {key: row[key] for key in row.keys() - {"vllm", "torch", "driver"}}
        kept[row["name"]] = {**facts, "host": host}
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {**document, "date": date, "rows": list(kept.values())}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path(".gpu/memory"), help="results (default: .gpu/memory)")
    add("--gpus", default="0", help="devices, such as 0,1 (default: 0)")
    add("--seconds", type=float, default=560, help="end of the measurement (default: 560)")
    add("--only", default="", metavar="PATTERN", help="rows whose name matches")
    add("--list", action="store_true", help="list the rows to measure, and exit")
    add("--collect", type=Path, nargs="+", metavar="FOLDER", help="add results to the evidence")
    add("--evidence", type=Path, default=EVIDENCE, help="the evidence file")
    for name, kind in (("--row", json.loads), ("--stem", Path)):
        add(name, type=kind, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        run_row(Setting(**options.row), options.stem)
    file = options.evidence
    document = json.loads(file.read_text()) if file.exists() else {}
    if options.collect:
        merged = merge_rows(document, read_rows(options.collect))
        file.write_text(json.dumps(merged, indent=1) + "\n")
        return
    done = {row["name"] for row in (*document.get("rows", ()), *read_rows([options.out]))}
    rows = [row for row in memory_settings() if row.name not in done]
    rows = [row for row in rows if re.search(options.only, row.name)]
    if options.list:
        print("\n".join(row.name for row in rows))
        return
    run_all(options.out, options.gpus.split(","), options.seconds, rows)


if __name__ == "__main__":
    main()
