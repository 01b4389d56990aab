"""Measure output tokens per second, TTFT and ITL for every drafter and K, at several loads.

Example, on a host with one GPU and vLLM, from the root of the repository:

    python -m measurements.gpu.speed --pair gpt-oss-20b
    python -m measurements.gpu.speed --pair qwen3-coder-30b --settings none,p-eagle:3,p-eagle:7
    python -m measurements.gpu.speed --pair qwen3-coder-30b --settings p-eagle:16,p-eagle:16:2176
    python -m measurements.gpu.speed --collect .gpu/speed/gpt-oss-20b --evidence speed.json

Weights are random, so no draft would be accepted: vLLM's synthetic rejection sampler accepts drafts
at the published rates, while target and drafter do their real work. Random weights draft the same
token again and again, which would touch few experts, so random tokens replace the drafts. One
engine measures all workloads and loads of a setting (see ``load``). A third number of a setting is
the largest number of tokens of a step that has a CUDA graph. Meanwhile the next process
imports its modules on CPUs of its own.

Rows go to FOLDER/PAIR/rows.jsonl as they are measured, logs to FOLDER/PAIR.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import queue
import shlex
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from measurements.gpu import dummy_weights, evidence, host, load
from measurements.gpu.geometry import ADAPTIVE, PAIRS, Setting, engine_arguments

SETTING_SECONDS = 1500
"""A process is killed after this time, waiting for the GPU included."""

# First acceptance rate and decay by position, which give the published mean acceptance lengths.
# GPT-OSS-20B, vLLM's blog, SPEED-Bench: P-EAGLE 2.87 at K=3 and 3.38 at K=7, EAGLE-3 2.24 at K=3
# (the curves give 1.93 at K=1 and 3.24 at K=5, where nothing is published). Qwen3-Coder, the head's
# card, HumanEval: 4.30 at K=4 and 6.66 at K=10 (the curve gives 4.23 and 6.67; 3.57 at K=3, 5.70 at
# K=7). GPT-OSS-120B, the head's card, mean of MT-Bench, HumanEval and GSM-8K at K=5: 3.13.
# Gemma-4-31B, second-hand from a card that quotes Red Hat's head, mean of seven tasks at K=5: 2.95.
# One length determines one number only, so these two have the decay of GPT-OSS-20B.
DECAY = {
    ("gpt-oss-20b", "p-eagle"): (0.9283, 0.6245),
    ("gpt-oss-20b", "eagle3"): (0.6118, 0.63),
    ("qwen3-coder-30b", "p-eagle"): (0.985, 0.8685),
    ("gpt-oss-120b", "p-eagle"): (0.884, 0.6245),
    ("gemma-4-31b", "eagle3"): (0.801, 0.63),
}
SETTINGS = "none,p-eagle:3,p-eagle:7,p-eagle:5,p-eagle:1,eagle3:3"


def rates(pair: str, drafter: str, k: int) -> list[float]:
    """The share of accepted drafts at each position; ValueError if none is known for the pair."""
    curve = DECAY.get((pair, drafter.removesuffix(ADAPTIVE)))
    if curve is None:
        raise ValueError(f"no published acceptance for {pair} with {drafter}")
    first, decay = curve
    return [round(first * decay**position, 4) for position in range(k)]


def settings(pair: str, names: str, tensor_parallel_size: int = 1) -> list[Setting]:
    """The settings of a list such as ``none,p-eagle:3``; raises ValueError for a wrong one."""
    chosen = []
    for name in names.split(","):
        drafter, *numbers = name.split(":")
        if not all(number.isdecimal() for number in numbers) or len(numbers) not in (
            (0,) if drafter == "none" else (1, 2)
        ):
            raise ValueError(
                f"{name}: expected none, or DRAFTER:K such as p-eagle:3 (or :K:TOKENS)"
            )
        k, size = (*map(int, numbers), 0, 0)[:2]
        chosen.append(
            Setting(
                pair,
                drafter if k else None,
                k,
                max_num_batched_tokens=8192,
                tensor_parallel_size=tensor_parallel_size,
                max_cudagraph_capture_size=size or None,
            )
        )
        if k:
            rates(pair, drafter, k)
    return chosen


def measure(setting: Setting, workloads: Sequence[load.Workload], out: Path, lock: Path) -> None:
    """Measure all loads with one engine; append a row for each to ``out``."""
    cpus = host.yield_cpus()
    import torch
    import vllm
    from vllm import LLM

    dummy_weights.keep_own_tensors(setting.own())
    dummy_weights.draft_random_tokens()
    handle = lock.open("w")  # locked until this process and its engine exit
    host.lock_gpus(handle, setting.tensor_parallel_size)
    os.sched_setaffinity(0, cpus)
    # Later turns of conversations are what the prefix cache is for.
    cached = any(workload.turns > 1 for workload in workloads)
    arguments = engine_arguments(replace(setting, enable_prefix_caching=cached))
    imposed = rates(setting.pair, setting.drafter, setting.k) if setting.drafter else None
    if imposed:
        arguments["speculative_config"] |= {
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_rates": imposed,
        }
    # Not from torch: with CUDA initialized here, vLLM would spawn its engine, without the change of
    # keep_own_tensors.
    devices, driver = host.gpu_and_driver()
    begin = time.perf_counter()
    llm = LLM(**arguments, disable_log_stats=False)
    config = llm.llm_engine.vllm_config
    facts = {
        "pair": setting.pair,
        "drafter": setting.drafter,
        "k": setting.k,
        "imposed_rates": imposed,
        "start_seconds": round(time.perf_counter() - begin, 1),
        "model_runner": "v2" if getattr(config, "use_v2_model_runner", False) else "v1",
        "kv_cache_tokens": getattr(config.cache_config, "kv_cache_size_tokens", None),
        "tensor_parallel_size": setting.tensor_parallel_size,
        "temperature": load.TEMPERATURE,
        "biases": "zero",
        "drafted_tokens": "random",
        "experts_of_8_tokens": dummy_weights.experts_touched(llm, 8),
        "max_num_seqs": setting.max_num_seqs,
        "max_num_batched_tokens": setting.max_num_batched_tokens,
        "max_cudagraph_capture_size": config.compilation_config.max_cudagraph_capture_size,
        "prefix_caching": cached,
        "device": devices.rpartition(" x ")[2],
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "driver": driver,
        "host": {"python": platform.python_version(), **host.cpus()},
        "command": os.environ.get("PEAGLE_GPU_COMMAND", ""),
    }
    for workload in workloads:
        for concurrency in workload.concurrencies:
            at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            row = {**facts, "measured": at, **load.measure(llm, workload, concurrency)}
            with out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps({key: row[key] for key in SHOWN}), flush=True)


SHOWN = ("pair", "drafter", "k", "max_cudagraph_capture_size", "workload", "concurrency",
         "output_tokens_per_second", "low", "high", "acceptance_length", "cached_share",
         "start_seconds")  # fmt: skip


def selected(names: str, loads: str) -> list[load.Workload]:
    """The workloads with these names, at these of their loads; an empty text stands for all.

    Raises ValueError for a name that does not exist or a load that is not a number.
    """
    more = (load.CONVERSATION, load.MANY_REQUESTS, load.DOCUMENT)
    workloads = {workload.name: workload for workload in (*load.WORKLOADS, *more)}
    chosen = names.split(",") if names else [workload.name for workload in load.WORKLOADS]
    if unknown := sorted(set(chosen) - set(workloads)):
        raise ValueError(f"unknown workloads: {', '.join(unknown)} (known: {', '.join(workloads)})")
    numbers = {int(number) for number in loads.split(",") if number}
    return [
        replace(
            workload,
            concurrencies=tuple(n for n in workload.concurrencies if not numbers or n in numbers),
        )
        for workload in workloads.values()
        if workload.name in chosen
    ]


def run_all(
    out: Path,
    gpus: Sequence[str],
    todo: Sequence[Setting],
    options: Sequence[str],
    seconds: float,
) -> None:
    """Measure every setting, each in a process of its own, distributed over the GPUs.

    Settings of several GPUs are distributed over groups of so many. ``options`` select workloads
    and loads.
    """
    end = time.monotonic() + seconds
    waiting: queue.SimpleQueue[Setting] = queue.SimpleQueue()
    for setting in todo:
        waiting.put(setting)

    def work(gpu: str, cpus: Sequence[int]) -> None:
        while time.monotonic() < end - 30:
            try:
                setting = waiting.get_nowait()
            except queue.Empty:
                return
            run_one(setting, options, gpu, cpus, out, end)

    size = max(setting.tensor_parallel_size for setting in todo)
    groups = [",".join(gpus[first : first + size]) for first in range(0, len(gpus), size)]
    streams = [(group, host.cpu_share(number, len(groups))) for number, group in enumerate(groups)]
    threads = [threading.Thread(target=work, args=stream) for _ in range(2) for stream in streams]
    for thread in threads:
        thread.start()
        time.sleep(1)
    for thread in threads:
        thread.join()


def run_one(
    setting: Setting, options: Sequence[str], gpu: str, cpus: Sequence[int], out: Path, end: float
) -> None:
    """Measure one setting on one GPU; its log is beside its rows."""
    folder = out / setting.pair
    folder.mkdir(parents=True, exist_ok=True)
    numbers = [setting.k, setting.max_cudagraph_capture_size]
    name = ":".join([setting.drafter or "none", *(str(number) for number in numbers if number)])
    command = [sys.executable, "-m", "measurements.gpu.speed", "--out", str(out), "--pair",
               setting.pair, "--settings", name, *options,
               "--tensor-parallel-size", str(setting.tensor_parallel_size),
               "--lock", str(out / f"gpu-{gpu.replace(',', '-')}.lock")]  # fmt: skip
    log = folder / f"speed-{name.replace(':', '-')}.log"
    arguments = sys.argv[1:]
    if "--out" in arguments:  # a folder of the host says nothing about the measurement
        at = arguments.index("--out")
        del arguments[at : at + 2]
    environment = {
        **os.environ,
        **host.ENGINE_ENVIRONMENT,
        **dummy_weights.SERIALIZATION,
        "CUDA_VISIBLE_DEVICES": gpu,
        "PEAGLE_GPU_COMMAND": shlex.join(["python", "-m", "measurements.gpu.speed", *arguments]),
    }
    with log.open("w") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        os.sched_setaffinity(process.pid, cpus)
        try:
            process.wait(max(1.0, min(end - time.monotonic(), SETTING_SECONDS)))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
    lines = log.read_text(errors="replace").splitlines()
    print("\n".join(line for line in lines if line.startswith('{"pair"')), flush=True)
    if process.returncode != 0:
        print(f"{log.name}: exit code {process.returncode}", *lines[-25:], sep="\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m measurements.gpu.speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    names = ",".join(workload.name for workload in load.WORKLOADS)
    add("--out", type=Path, default=Path(".gpu/speed"), help="results (default: .gpu/speed)")
    add("--gpus", default="0", help="devices, such as 0,1 (default: 0)")
    add("--pair", choices=PAIRS, default="gpt-oss-20b", help="default: gpt-oss-20b")
    add("--settings", default=SETTINGS, metavar="LIST", help=f"default: {SETTINGS}")
    add("--tensor-parallel-size", type=int, default=1, metavar="N", help="GPUs of an engine")
    add("--workloads", default=names, metavar="LIST", help=f"default: {names}")
    add("--loads", default="", metavar="LIST", help="such as 1,8,32 (default: all of a workload)")
    add("--seconds", type=float, default=1500, help="end of the measurement (default: 1500)")
    add("--collect", type=Path, nargs="+", metavar="FOLDER", help="write the evidence of results")
    add("--raw", action="store_true", help="with --collect: only raw rows, which plans ignore")
    add("--evidence", type=Path, help="the evidence file that --collect writes")
    add("--lock", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.collect:
        if options.evidence is None:
            parser.error("--collect needs --evidence FILE")
        document = evidence.speed_document(options.collect)
        if options.raw:
            document.pop("speeds", None)
        evidence.write(options.evidence, document)
        return
    try:
        todo = settings(options.pair, options.settings, options.tensor_parallel_size)
        workloads = selected(options.workloads, options.loads)
    except ValueError as error:
        parser.error(str(error))
    if options.lock:
        try:
            rows = options.out / options.pair / "rows.jsonl"
            measure(todo[0], workloads, rows, options.lock)
        except BaseException:
            traceback.print_exc()
            sys.stdout.flush()
            os._exit(1)
    else:
        chosen = ("--workloads", options.workloads, "--loads", options.loads)
        run_all(options.out, options.gpus.split(","), todo, chosen, options.seconds)


if __name__ == "__main__":
    main()
