"""One step of a lease: a measurement within its seconds, its results handed over as it goes.

``python3 -m benchmarks.gpu.steps memory|speed --out FOLDER --seconds 300 [--gpus 0,1]``

What a measurement writes lies below ``--root``, so that the next command goes on where this one
ended; its rows are copied to ``--out`` every few seconds and its logs in the end, because only
that folder comes back, also from a command that is stopped. There they lie as ``memory/rows.jsonl``
and ``memory/logs.tar.xz``, which ``--collect`` of the measurement takes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.carry import ROOT

PHASES = (("gemma-4-31b.*_tp1", 0.8), ("_tp2$", 0.9), ("", 1.0))
"""Of the missing rows of memory: which come first, and until what share of the seconds."""
_EVERY_SECONDS = 3.0
_END_SECONDS = 8.0
"""How long a measurement may take to end its engines after its own time."""


def memory(out: Path, work: Path, gpus: str, seconds: float) -> None:
    """The missing rows, the most valuable first."""
    phases = [token for text, share in PHASES for token in ("--phase", text, str(share))]
    run("memory", ["--gpus", gpus, *phases], out, work, seconds)


def speed(out: Path, work: Path, gpus: str, seconds: float) -> None:
    """Every drafter and K of GPT-OSS-20B."""
    run("speed", ["--gpus", gpus], out, work, seconds)


def run(module: str, arguments: Sequence[str], out: Path, work: Path, seconds: float) -> None:
    """One measurement, not longer than its seconds; rows and logs are in ``out`` afterwards."""
    command = [sys.executable, "-m", f"benchmarks.gpu.{module}", "--out", str(work),
               "--seconds", f"{seconds - _END_SECONDS:.0f}", *arguments]  # fmt: skip
    begin = time.monotonic()
    print(f"{module} {' '.join(arguments)}: {seconds:.0f} s", flush=True)
    process = subprocess.Popen(command, start_new_session=True)
    while process.poll() is None and time.monotonic() - begin < seconds:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_EVERY_SECONDS)
        hand_rows(work, out)
    if process.poll() is None:
        print(f"{module}: did not end by itself", flush=True)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    hand_rows(work, out)
    hand_logs(work, out)
    print(f"{module}: {time.monotonic() - begin:.0f} s", flush=True)


def hand_rows(work: Path, out: Path) -> None:
    """The rows so far, whole or as they were."""
    rows = work / "rows.jsonl"
    if rows.is_file():
        shutil.copy(rows, out / "rows.part")
        (out / "rows.part").replace(out / "rows.jsonl")


def hand_logs(work: Path, out: Path) -> None:
    """All logs in one file."""
    with tarfile.open(out / "logs.tar.xz", "w:xz", preset=3) as tar:
        for log in sorted(work.rglob("*.log")):
            tar.add(log, arcname=str(log.relative_to(work)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=("memory", "speed"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--gpus", default="0")
    parser.add_argument("--seconds", type=float, default=300)
    given = parser.parse_args()
    out, work = given.out / given.step, given.root / given.step
    for folder in (out, work):
        folder.mkdir(parents=True, exist_ok=True)
    if given.step == "memory":
        # The probe's lines of the log are DEBUG lines.
        os.environ["VLLM_LOGGING_LEVEL"] = "DEBUG"
        memory(out, work, given.gpus, given.seconds)
    else:
        speed(out, work, given.gpus, given.seconds)


if __name__ == "__main__":
    main()
