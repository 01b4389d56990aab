"""Starts vLLM once per row and writes down what memory it counted.

``python -m benchmarks.gpu.memory --out FOLDER [--gpus 0,1] [--seconds 560] [--only TEXT]``

Each row has a process of its own, and each GPU one engine at a time; the next row's process loads
its modules meanwhile and waits for the GPU. A row that fails is written with its error. A row
that ``rows.jsonl`` or the evidence file has already is not run again (``--again`` runs the
evidence's, too; ``--list`` shows what is left). Rows for two GPUs come last.

``python -m benchmarks.gpu.memory --collect FOLDER...`` puts the rows of these folders into the
evidence file; what it holds besides stays, and without new rows it stays byte for byte.

On Hopper the package ``quack-kernels`` must be installed beside vLLM, at the version that vLLM's
metadata pins: without it the start ends in the warm-up of its kernels, after the cache is laid out
and before CUDA graphs are captured, and the row is marked as incomplete.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from benchmarks.gpu import evidence
from benchmarks.gpu.geometry import Setting, engine_arguments
from benchmarks.gpu.logs import log_lines, logged
from benchmarks.gpu.rows import settings

ROW_SECONDS = 240
WAITING_SECONDS = 300
IDLE_GPU_BYTES = 3 << 30


# One row, in a process of its own


def run_row(setting: Setting, lock: Path, stem: Path) -> dict[str, Any]:
    """Starts the engine and says what it is made of; the probe's files hold what it counted."""
    row: dict[str, Any] = {}
    import torch
    import vllm
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.executor import Executor

    # Before the engine and its workers, which learn of it by the environment.
    from benchmarks.gpu.extension import announce

    row |= {"vllm": vllm.__version__, "torch": torch.__version__}
    probed = announce(stem, setting.own())
    with lock.open("w") as handle:
        wait_for(handle, setting.tensor_parallel_size)
        begin = time.perf_counter()
        arguments = EngineArgs(**engine_arguments(setting), **probed)
        config = arguments.create_engine_config(UsageContext.OPENAI_API_SERVER)
        row["cuda_before_engine"] = bool(torch.cuda.is_initialized())
        engine = EngineCore(config, Executor.get_class(config), log_stats=False)
        row["start_seconds"] = round(time.perf_counter() - begin, 2)
        row["effective"] = effective(engine.vllm_config)
        stem.with_name(f"{stem.name}-row.json").write_text(json.dumps(row, default=str))
        sys.stdout.flush()
        sys.stderr.flush()
        if setting.tensor_parallel_size > 1:
            engine.shutdown()
        os._exit(0)


def wait_for(handle: TextIO, gpus: int) -> None:
    """Holds the GPU's lock, once the engine before has left the GPU."""
    fcntl.flock(handle, fcntl.LOCK_EX)
    devices = [int(device) for device in os.environ["CUDA_VISIBLE_DEVICES"].split(",")][:gpus]
    end = time.monotonic() + 30
    while time.monotonic() < end and max(map(used_bytes, devices)) > IDLE_GPU_BYTES:
        time.sleep(0.2)


def used_bytes(device: int) -> int:
    """What is taken of a GPU's memory, by the driver's count, without touching CUDA."""
    from vllm.third_party import pynvml

    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(device)
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    finally:
        pynvml.nvmlShutdown()


def effective(config: Any) -> dict[str, Any]:
    """The settings that the engine ended with."""
    scheduler, cache, compilation = (
        config.scheduler_config, config.cache_config, config.compilation_config,
    )  # fmt: skip
    sizes = compilation.cudagraph_capture_sizes or []
    return {
        "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
        "gpu_memory_utilization": cache.gpu_memory_utilization,
        "max_model_len": config.model_config.max_model_len,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_num_scheduled_tokens": getattr(scheduler, "max_num_scheduled_tokens", None),
        "max_in_flight_tokens": config.max_in_flight_tokens,
        "async_scheduling": scheduler.async_scheduling,
        "enable_chunked_prefill": scheduler.enable_chunked_prefill,
        "enable_prefix_caching": cache.enable_prefix_caching,
        "kv_cache_dtype": str(cache.cache_dtype),
        "block_size": cache.block_size,
        "num_gpu_blocks": cache.num_gpu_blocks,
        "kv_cache_size_tokens": getattr(cache, "kv_cache_size_tokens", None),
        "kv_cache_max_concurrency": getattr(cache, "kv_cache_max_concurrency", None),
        "dtype": str(config.model_config.dtype),
        "quantization": config.model_config.quantization,
        "enforce_eager": config.model_config.enforce_eager,
        "cudagraph_mode": str(compilation.cudagraph_mode),
        "max_cudagraph_capture_size": compilation.max_cudagraph_capture_size,
        "cudagraph_capture_sizes": list(sizes),
        "compile_ranges": str(compilation.get_compile_ranges()),
        "use_v2_model_runner": config.use_v2_model_runner,
    }


# All rows


class Run:
    """The rows still to do, shared by the GPUs' threads."""

    def __init__(self, out: Path, rows: Sequence[Setting], seconds: float) -> None:
        self.out, self.end = out, time.monotonic() + seconds
        self.waiting = list(rows)
        self.guard = threading.Lock()

    def next(self) -> Setting | None:
        with self.guard:
            left = self.end - time.monotonic()
            return self.waiting.pop(0) if self.waiting and left > 25 else None

    def note(self, row: dict[str, Any]) -> None:
        with self.guard, (self.out / "rows.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(summary(row), flush=True)


def work(run: Run, gpus: str) -> None:
    """Runs rows on these GPUs until none is left or the time is over."""
    while setting := run.next():
        run.note(row_in_process(setting, gpus, run.out, run.end))


def row_in_process(setting: Setting, gpus: str, out: Path, end: float) -> dict[str, Any]:
    """One row, read back from the files that its process wrote."""
    stem = out / "facts" / setting.name
    log = out / "logs" / f"{setting.name}.log"
    lock = out / f"gpu-{gpus.replace(',', '-')}.lock"
    command = [sys.executable, "-m", "benchmarks.gpu.memory", "--row", json.dumps(asdict(setting)),
               "--stem", str(stem), "--lock", str(lock)]  # fmt: skip
    begin = time.monotonic()
    timeout = max(1.0, min(end - begin, ROW_SECONDS + WAITING_SECONDS))
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": gpus},
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(process.pid, 9)
            process.wait()
    text = log.read_text(errors="replace")
    row = {"name": setting.name, "setting": asdict(setting), "gpus": gpus, **_read(stem)}
    row["logged"] = logged(text)
    row["log"] = log_lines(text)
    if code != 0:
        row["error"] = "timeout" if code is None else f"exit code {code}"
        row["log_tail"] = text[-6000:]
    return row


def _read(stem: Path) -> dict[str, Any]:
    row: dict[str, Any] = {}
    path = stem.with_name(f"{stem.name}-row.json")
    if path.exists():
        row |= json.loads(path.read_text())
    ranks = sorted(stem.parent.glob(f"{stem.name}-[0-9].json"))
    row["ranks"] = [json.loads(rank.read_text()) for rank in ranks]
    return row


def summary(row: dict[str, Any]) -> str:
    """A line for the terminal."""
    gib = 1 << 30
    facts = row["ranks"][0] if row["ranks"] else {}
    numbers = [
        f"{short} {facts[key] / gib:.2f}"
        for short, key in (
            ("w", "model_memory_usage"),
            ("act", "torch_peak_increase"),
            ("nt", "non_torch_increase"),
            ("cge", "cuda_graph_memory_estimate"),
            ("cg", "cuda_graph_memory"),
            ("kv", "available_kv_cache_memory"),
        )
        if key in facts
    ]
    tokens = row.get("effective", {}).get("kv_cache_size_tokens")
    end = row.get("error") or f"{tokens} tokens, {row.get('start_seconds')} s"
    return f"{row['name']}: {' '.join(numbers)} | {end}"


def left(out: Path, only: str, known: set[str]) -> list[Setting]:
    """The rows that neither the folder nor the evidence has."""
    done = {row["name"] for row in evidence.rows_of([out]) if "error" not in row} | known
    return [row for row in settings() if row.name not in done and re.search(only, row.name)]


def run_all(out: Path, gpus: Sequence[str], seconds: float, rows: Sequence[Setting]) -> None:
    """Runs these rows, on each GPU alone, then what needs several."""
    for folder in ("facts", "logs"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    single = [row for row in rows if row.tensor_parallel_size == 1]
    run = Run(out, single, seconds)
    threads = [threading.Thread(target=work, args=(run, gpu)) for gpu in gpus for _ in range(2)]
    for thread in threads:
        thread.start()
        time.sleep(1)
    for thread in threads:
        thread.join()
    if len(gpus) > 1:
        run.waiting = [row for row in rows if row.tensor_parallel_size == len(gpus)]
        work(run, ",".join(gpus))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("gpu-memory"))
    parser.add_argument("--gpus", default="0")
    parser.add_argument("--seconds", type=float, default=560)
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--collect", type=Path, nargs="*")
    parser.add_argument("--evidence", type=Path, default=evidence.EVIDENCE)
    parser.add_argument("--row", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--stem", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--lock", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    document = evidence.read(given.evidence)
    rows = left(given.out, given.only, set() if given.again else evidence.measured(document))
    if given.list:
        print("\n".join(row.name for row in rows))
    elif given.row:
        try:
            run_row(Setting(**given.row), given.lock, given.stem)
        except BaseException:
            traceback.print_exc()
            sys.stdout.flush()
            os._exit(1)
    elif given.collect:
        merged = evidence.merged(document, evidence.rows_of(given.collect))
        evidence.write(given.evidence, merged)
    else:
        run_all(given.out, given.gpus.split(","), given.seconds, rows)


if __name__ == "__main__":
    main()
