"""Starts vLLM once per row and writes down what memory it counted.

``python -m benchmarks.gpu.memory --out FOLDER [--gpus 0,1] [--seconds 560] [--only TEXT]``

Each row has a process of its own, and each GPU one engine at a time; the next row's process loads
its modules meanwhile and waits for the GPU. A row that fails is written with its error. A row
that ``rows.jsonl`` or the evidence file has already is not run again (``--again`` runs the
evidence's, too; ``--list`` shows what is left). Rows for two GPUs come last, unless phases are
named: with ``--phase TEXT SHARE`` (again and again) the rows of TEXT come first, and none of them
is begun after that share of the seconds.

``python -m benchmarks.gpu.memory --collect FOLDER...`` puts the rows of these folders into the
evidence file; what it holds besides stays, and without new rows it stays byte for byte.

On Hopper the package ``quack-kernels`` must be installed beside vLLM, at the version that vLLM's
metadata pins: without it the start ends in the warm-up of its kernels, after the cache is laid out
and before CUDA graphs are captured, and the row is marked as incomplete.
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

from benchmarks.gpu import cores, evidence
from benchmarks.gpu.geometry import Setting
from benchmarks.gpu.logs import log_lines, logged
from benchmarks.gpu.row import run_row
from benchmarks.gpu.rows import settings

ROW_SECONDS = 240
WAITING_SECONDS = 300
LEAST_SECONDS = 25
"""With less left, no row is begun."""


class Run:
    """The rows still to do, shared by the GPUs' threads. After ``stop`` none is begun any more, at
    ``end`` those that run are ended."""

    def __init__(self, out: Path, end: float) -> None:
        self.out, self.end, self.stop = out, end, end
        self.waiting: list[Setting] = []
        self.begun: set[str] = set()
        self.guard = threading.Lock()

    def next(self) -> Setting | None:
        with self.guard:
            now = time.monotonic()
            if not self.waiting or now > self.stop or self.end - now < LEAST_SECONDS:
                return None
            setting = self.waiting.pop(0)
            self.begun.add(setting.name)
            return setting

    def note(self, row: dict[str, Any]) -> None:
        with self.guard, (self.out / "rows.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(summary(row), flush=True)


def work(run: Run, gpus: str, cpus: Sequence[int]) -> None:
    """Runs rows on these GPUs until none is left or the time is over."""
    while setting := run.next():
        run.note(row_in_process(setting, gpus, cpus, run.out, run.end))


def row_in_process(
    setting: Setting, gpus: str, cpus: Sequence[int], out: Path, end: float
) -> dict[str, Any]:
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
        os.sched_setaffinity(process.pid, cpus)
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


def run_all(
    out: Path,
    gpus: Sequence[str],
    seconds: float,
    rows: Sequence[Setting],
    phases: Sequence[tuple[str, float]] = (("", 1.0),),
) -> None:
    """Runs these rows, on each GPU alone, then what needs several.

    A phase is the rows of a pattern, and the share of the seconds after which none of them is
    begun any more; what runs then may go on, and keeps its GPUs.
    """
    for folder in ("facts", "logs"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    run = Run(out, begin + seconds)
    for pattern, share in phases:
        run.stop = begin + share * seconds
        here = [row for row in rows if re.search(pattern, row.name) and row.name not in run.begun]
        _single(run, gpus, [row for row in here if row.tensor_parallel_size == 1])
        if len(gpus) > 1:
            run.waiting = [row for row in here if row.tensor_parallel_size == len(gpus)]
            work(run, ",".join(gpus), cores.share(0, 1))


def _single(run: Run, gpus: Sequence[str], rows: list[Setting]) -> None:
    run.waiting = list(rows)
    streams = [(run, gpu, cores.share(number, len(gpus))) for number, gpu in enumerate(gpus)]
    threads = [threading.Thread(target=work, args=stream) for _ in range(2) for stream in streams]
    for thread in threads[: 2 * len(rows)]:
        thread.start()
        time.sleep(1)
    for thread in threads[: 2 * len(rows)]:
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("gpu-memory"))
    parser.add_argument("--gpus", default="0")
    parser.add_argument("--seconds", type=float, default=560)
    parser.add_argument("--only", default="")
    parser.add_argument("--phase", nargs=2, action="append", metavar=("TEXT", "SHARE"))
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
        phases = [(text, float(share)) for text, share in given.phase or [("", 1.0)]]
        run_all(given.out, given.gpus.split(","), given.seconds, rows, phases)


if __name__ == "__main__":
    main()
