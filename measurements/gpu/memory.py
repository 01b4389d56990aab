"""Start vLLM once per setting and record the memory that it counts.

Example, on a host with one GPU and vLLM, from the root of the repository:

    python -m measurements.gpu.memory --only gpt-oss-20b --evidence memory.json
    python -m measurements.gpu.memory --collect .gpu/memory --evidence memory.json

Each row has a process of its own, and each GPU runs one engine at a time; meanwhile the next row's
process imports its modules and waits for the GPU. Rows go to FOLDER/rows.jsonl as they are
measured, logs to FOLDER/logs. A failed row is recorded with its error. A row that rows.jsonl or
the evidence has is not measured again (--again repeats those of the evidence). Rows for two GPUs
come last unless --phase changes the order.

--collect adds the rows of these folders to the evidence file and changes nothing else in it.

On Hopper, vLLM 0.26 needs the package quack-kernels at the version in vLLM's metadata: without it
the start fails in the warm-up of its kernels, after the cache is laid out and before CUDA graphs
are captured, and the row is marked as incomplete.
"""

from __future__ import annotations

import argparse
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
from typing import Any

from measurements.gpu import evidence, host
from measurements.gpu.geometry import Setting, engine_arguments, memory_settings
from measurements.gpu.logs import engine_numbers, memory_lines
from measurements.gpu.probe import announce

ROW_SECONDS = 240
WAITING_SECONDS = 300
MIN_SECONDS = 25
"""With less time left, no row starts."""


class Queue:
    """The rows to measure, shared by the GPUs' threads.

    After ``stop`` no row starts; at ``end`` running rows are killed. Both are monotonic times.
    """

    def __init__(self, out: Path, end: float) -> None:
        self.out, self.end, self.stop = out, end, end
        self.waiting: list[Setting] = []
        self.started: set[str] = set()
        self.lock = threading.Lock()

    def next(self) -> Setting | None:
        with self.lock:
            now = time.monotonic()
            if not self.waiting or now > self.stop or self.end - now < MIN_SECONDS:
                return None
            setting = self.waiting.pop(0)
            self.started.add(setting.name)
            return setting

    def record(self, row: dict[str, Any]) -> None:
        with self.lock, (self.out / "rows.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(summary(row), flush=True)


def work(queue: Queue, gpus: str, cpus: Sequence[int]) -> None:
    """Measure rows on these GPUs until none is left or the time is over."""
    while setting := queue.next():
        queue.record(row_in_process(setting, gpus, cpus, queue.out, queue.end))


def row_in_process(
    setting: Setting, gpus: str, cpus: Sequence[int], out: Path, end: float
) -> dict[str, Any]:
    """Measure one row in a process of its own; the row from the files that it wrote."""
    stem = out / "facts" / setting.name
    log = out / "logs" / f"{setting.name}.log"
    lock = out / f"gpu-{gpus.replace(',', '-')}.lock"
    command = [sys.executable, "-m", "measurements.gpu.memory",
               "--row", json.dumps(asdict(setting)), "--stem", str(stem),
               "--lock", str(lock)]  # fmt: skip
    # Several of the recorded lines are on vLLM's DEBUG level.
    environment = {
        **os.environ,
        **host.ENGINE_ENVIRONMENT,
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "CUDA_VISIBLE_DEVICES": gpus,
    }
    begin = time.monotonic()
    timeout = max(1.0, min(end - begin, ROW_SECONDS + WAITING_SECONDS))
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        os.sched_setaffinity(process.pid, cpus)
        try:
            code: int | None = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(process.pid, 9)
            process.wait()
    text = log.read_text(errors="replace")
    row = {"name": setting.name, "setting": asdict(setting), "gpus": gpus, **_read(stem)}
    row["logged"] = engine_numbers(text)
    row["log"] = memory_lines(text)
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
    """One line for the terminal; sizes in GiB."""
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


def remaining(out: Path, only: str, measured: set[str]) -> list[Setting]:
    """The settings to measure: those that neither the folder nor ``known`` has."""
    done = {row["name"] for row in evidence.rows_of([out]) if "error" not in row} | measured
    return [row for row in memory_settings() if row.name not in done and re.search(only, row.name)]


def run_all(
    out: Path,
    gpus: Sequence[str],
    seconds: float,
    rows: Sequence[Setting],
    phases: Sequence[tuple[str, float]] = (("", 1.0),),
) -> None:
    """Measure these rows: first those for one GPU, on all GPUs at once, then those for several.

    A phase is a pattern for names of rows, and the share of the seconds after which none of them
    starts; a running row continues and keeps its GPUs.
    """
    for folder in ("facts", "logs"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    queue = Queue(out, begin + seconds)
    for pattern, share in phases:
        queue.stop = begin + share * seconds
        here = [
            row for row in rows if re.search(pattern, row.name) and row.name not in queue.started
        ]
        _single(queue, gpus, [row for row in here if row.tensor_parallel_size == 1])
        if len(gpus) > 1:
            queue.waiting = [row for row in here if row.tensor_parallel_size == len(gpus)]
            work(queue, ",".join(gpus), host.cpu_share(0, 1))


def _single(queue: Queue, gpus: Sequence[str], rows: list[Setting]) -> None:
    queue.waiting = list(rows)
    streams = [(queue, gpu, host.cpu_share(number, len(gpus))) for number, gpu in enumerate(gpus)]
    threads = [threading.Thread(target=work, args=stream) for _ in range(2) for stream in streams]
    for thread in threads[: 2 * len(rows)]:
        thread.start()
        time.sleep(1)
    for thread in threads[: 2 * len(rows)]:
        thread.join()


def run_row(setting: Setting, lock: Path, stem: Path) -> None:
    """Start the engine in this process, write its settings to a file, and exit.

    The probe writes the memory that the engine counts.
    """
    import torch
    import vllm
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.executor import Executor

    row: dict[str, Any] = {"vllm": vllm.__version__, "torch": torch.__version__}
    _, row["driver"] = host.gpu_and_driver()
    # Before the engine and its workers, which read it from the environment.
    probed = announce(stem, setting.own())
    with lock.open("w") as handle:
        host.lock_gpus(handle, setting.tensor_parallel_size)
        begin = time.perf_counter()
        arguments = EngineArgs(**engine_arguments(setting), **probed)
        config = arguments.create_engine_config(UsageContext.OPENAI_API_SERVER)
        row["cuda_before_engine"] = bool(torch.cuda.is_initialized())
        engine = EngineCore(config, Executor.get_class(config), log_stats=False)
        row["start_seconds"] = round(time.perf_counter() - begin, 2)
        row["effective"] = _effective(engine.vllm_config)
        stem.with_name(f"{stem.name}-row.json").write_text(json.dumps(row, default=str))
        sys.stdout.flush()
        sys.stderr.flush()
        if setting.tensor_parallel_size > 1:
            engine.shutdown()
        os._exit(0)


def _effective(config: Any) -> dict[str, Any]:
    """The settings that the engine uses."""
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


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m measurements.gpu.memory",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path(".gpu/memory"), help="results (default: .gpu/memory)")
    add("--gpus", default="0", help="devices, such as 0,1 (default: 0)")
    add("--seconds", type=float, default=560, help="end of the measurement (default: 560)")
    add("--only", default="", metavar="PATTERN", help="rows whose name matches")
    add("--phase", nargs=2, action="append", metavar=("PATTERN", "SHARE"),
        help="first matching rows; none starts after SHARE of the seconds; repeatable")  # fmt: skip
    add("--list", action="store_true", help="list the rows to measure, and exit")
    add("--again", action="store_true", help="also measure rows that the evidence has")
    add("--collect", type=Path, nargs="+", metavar="FOLDER", help="add results to the evidence")
    add("--evidence", type=Path, default=evidence.MEMORY_EVIDENCE, help="the evidence file")
    for name, kind in (("--row", json.loads), ("--stem", Path), ("--lock", Path)):
        add(name, type=kind, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        try:
            run_row(Setting(**options.row), options.lock, options.stem)
        except BaseException:
            traceback.print_exc()
            sys.stdout.flush()
            os._exit(1)
    document = evidence.read(options.evidence)
    if options.collect:
        rows = evidence.rows_of(options.collect)
        document = document or evidence.new_memory_document(rows)
        evidence.write(options.evidence, evidence.merge_rows(document, rows))
        return
    measured = set() if options.again else evidence.measured(document)
    todo = remaining(options.out, options.only, measured)
    if options.list:
        print("\n".join(row.name for row in todo))
        return
    phases = [(pattern, float(share)) for pattern, share in options.phase or [("", 1.0)]]
    run_all(options.out, options.gpus.split(","), options.seconds, todo, phases)


if __name__ == "__main__":
    main()
