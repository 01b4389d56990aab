"""Measure output tokens per second for every drafter and K, at several loads.

Example, on a host with one GPU and vLLM, from the root of the repository:

    python -m benchmarks.gpu.speed --pair gpt-oss-20b
    python -m benchmarks.gpu.speed --collect .gpu/speed --evidence speed.json

Weights are random, so no draft would be accepted: vLLM's synthetic rejection sampler accepts drafts
at the published rates, while target and drafter do their real work. Each load sends as many prompts
as it has streams at once and waits for the last response; the best repetition counts. While one
engine is measured, the next process imports its modules on CPUs of its own.

Rows go to FOLDER/rows.jsonl as they are measured, logs to FOLDER.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import queue
import random
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import evidence, host, probe
from benchmarks.gpu.geometry import PAIRS, Setting, engine_arguments

PROMPT_TOKENS = 128
OUTPUT_TOKENS = 400
CONCURRENCIES = (1, 8, 32, 64, 128)
REPETITIONS = (3, 6)
"""Minimum and maximum."""
SPREAD = 0.03
"""Allowed difference of the two best repetitions; otherwise there are more, up to the maximum."""
ROW_SECONDS = 400

# First acceptance rate and decay by position. The mean acceptance lengths match vLLM's blog for
# GPT-OSS-20B on SPEED-Bench: P-EAGLE 2.87 at K=3 and 3.38 at K=7 (which gives 3.24 at K=5, where
# nothing is published); EAGLE-3 2.24 at K=3.
DECAY = {"p-eagle": (0.9283, 0.6245), "eagle3": (0.6118, 0.63)}
VARIANTS: tuple[tuple[str | None, int], ...] = (
    ("p-eagle", 7),
    (None, 0),
    ("p-eagle", 3),
    ("p-eagle", 5),
    ("eagle3", 3),
)


def rates(drafter: str, k: int) -> list[float]:
    """The share of accepted drafts at each position."""
    first, decay = DECAY[drafter]
    return [round(first * decay**position, 4) for position in range(k)]


def measure(setting: Setting, out: Path, lock: Path) -> None:
    """Measure all loads with one engine; append a row for each to ``out``."""
    cpus = host.yield_cpus()
    import torch
    import vllm
    from vllm import LLM

    probe.keep_own_tensors(setting.own())
    handle = lock.open("w")  # locked until this process and its engine exit
    host.lock_gpus(handle, 1)
    os.sched_setaffinity(0, cpus)
    arguments = engine_arguments(setting)
    if setting.drafter:
        arguments["speculative_config"] |= {
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_rates": rates(setting.drafter, setting.k),
        }
    # Not from torch: with CUDA initialized here, vLLM would spawn its engine, without the change of
    # keep_own_tensors.
    devices, driver = host.gpu_and_driver()
    software = {
        "device": devices.rpartition(" x ")[2],
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "driver": driver,
    }
    begin = time.perf_counter()
    llm = LLM(**arguments, disable_log_stats=False)
    start = round(time.perf_counter() - begin, 1)
    generate(llm, 8, 64)
    for concurrency in CONCURRENCIES:
        generate(llm, concurrency, 32)
        tries = repeated(functools.partial(generate, llm, concurrency, OUTPUT_TOKENS))
        row = {
            "pair": setting.pair,
            "drafter": setting.drafter,
            "k": setting.k,
            "concurrency": concurrency,
            "output_tokens_per_second": max(speed for speed, _ in tries),
            "acceptance_length": tries[-1][1] if setting.drafter else None,
            "prompt_tokens": PROMPT_TOKENS,
            "output_tokens": OUTPUT_TOKENS,
            "tries": [speed for speed, _ in tries],
            "start_seconds": start,
            **software,
        }
        with out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


def repeated(once: Callable[[], tuple[float, float]]) -> list[tuple[float, float]]:
    """The results of all repetitions: the minimum, and more while the two best differ."""
    minimum, maximum = REPETITIONS
    tries: list[tuple[float, float]] = []
    while len(tries) < maximum:
        tries.append(once())
        second, best = sorted(speed for speed, _ in [(0.0, 0.0), *tries])[-2:]
        if len(tries) >= minimum and second >= best * (1 - SPREAD):
            break
    return tries


def generate(llm: Any, concurrency: int, tokens: int) -> tuple[float, float]:
    """Output tokens per second, and the mean acceptance length, of one batch."""
    from vllm import SamplingParams

    draw = random.Random()
    prompts = [
        {"prompt_token_ids": [draw.randrange(1000, 100_000) for _ in range(PROMPT_TOKENS)]}
        for _ in range(concurrency)
    ]
    parameters = SamplingParams(
        temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False
    )
    before = accepted(llm)
    begin = time.perf_counter()
    outputs = llm.generate(prompts, parameters, use_tqdm=False)
    seconds = time.perf_counter() - begin
    drafts, tokens_accepted = (new - old for new, old in zip(accepted(llm), before, strict=True))
    made = sum(len(output.outputs[0].token_ids) for output in outputs)
    return round(made / seconds, 1), round(1 + tokens_accepted / drafts, 3) if drafts else 1.0


def accepted(llm: Any) -> tuple[int, int]:
    """The numbers of drafts and of accepted draft tokens so far."""
    values = {metric.name: getattr(metric, "value", 0) for metric in llm.get_metrics()}
    return (
        int(values.get("vllm:spec_decode_num_drafts", 0)),
        int(values.get("vllm:spec_decode_num_accepted_tokens", 0)),
    )


def run_all(out: Path, gpus: Sequence[str], pair: str, seconds: float) -> None:
    """Measure every variant, each in a process of its own, distributed over the GPUs."""
    out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + seconds
    waiting: queue.SimpleQueue[Setting] = queue.SimpleQueue()
    for drafter, k in VARIANTS:
        waiting.put(Setting(pair, drafter, k, max_num_batched_tokens=8192))

    def work(gpu: str, cpus: Sequence[int]) -> None:
        while time.monotonic() < end - 30:
            try:
                setting = waiting.get_nowait()
            except queue.Empty:
                return
            run_one(setting, gpu, cpus, out, end)

    streams = [(gpu, host.cpu_share(number, len(gpus))) for number, gpu in enumerate(gpus)]
    threads = [threading.Thread(target=work, args=stream) for _ in range(2) for stream in streams]
    for thread in threads:
        thread.start()
        time.sleep(1)
    for thread in threads:
        thread.join()


def run_one(setting: Setting, gpu: str, cpus: Sequence[int], out: Path, end: float) -> None:
    """Measure one variant on one GPU; its log is beside its rows."""
    command = [sys.executable, "-m", "benchmarks.gpu.speed", "--out", str(out), "--pair",
               setting.pair, "--variant", f"{setting.drafter or 'none'}:{setting.k}",
               "--lock", str(out / f"gpu-{gpu}.lock")]  # fmt: skip
    log = out / f"speed-{setting.drafter or 'none'}-{setting.k}.log"
    environment = {**os.environ, **host.ENGINE_ENVIRONMENT, "CUDA_VISIBLE_DEVICES": gpu}
    with log.open("w") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        os.sched_setaffinity(process.pid, cpus)
        try:
            process.wait(max(1.0, min(end - time.monotonic(), ROW_SECONDS)))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
    lines = log.read_text(errors="replace").splitlines()
    print("\n".join(line for line in lines if line.startswith('{"pair"')), flush=True)
    if process.returncode != 0:
        print(f"{log.name}: exit code {process.returncode}", *lines[-25:], sep="\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path(".gpu/speed"), help="results (default: .gpu/speed)")
    add("--gpus", default="0", help="devices, such as 0,1 (default: 0)")
    add("--pair", choices=PAIRS, default="gpt-oss-20b", help="default: gpt-oss-20b")
    add("--seconds", type=float, default=300, help="end of the measurement (default: 300)")
    add("--collect", type=Path, nargs="+", metavar="FOLDER", help="write the evidence of results")
    add("--evidence", type=Path, help="the evidence file that --collect writes")
    add("--variant", help=argparse.SUPPRESS)
    add("--lock", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.variant:
        drafter, k = options.variant.split(":")
        name = None if drafter == "none" else drafter
        try:
            setting = Setting(options.pair, name, int(k), max_num_batched_tokens=8192)
            measure(setting, options.out / "rows.jsonl", options.lock)
        except BaseException:
            traceback.print_exc()
            sys.stdout.flush()
            os._exit(1)
    elif options.collect:
        if options.evidence is None:
            parser.error("--collect needs --evidence FILE")
        evidence.write(options.evidence, evidence.speed_document(options.collect))
    else:
        run_all(options.out, options.gpus.split(","), options.pair, options.seconds)


if __name__ == "__main__":
    main()
