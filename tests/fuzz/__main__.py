"""``python -m tests.fuzz``: many inputs for every parser, with a table of what became of them.

``make fuzz N=100000`` runs so many for each, ``ONLY=name`` some. What fails is written to
``tests/fuzz/corpus``, with which every later run begins; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

from tests.fuzz.parsers import PARSERS
from tests.fuzz.run import Counts, run, save

_COLUMNS = ("inputs", "refused", "worst ms", "peak MB", "s", "failures")
_HEAD = f"{'parser':22} " + " ".join(f"{name:>9}" for name in _COLUMNS)


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    options.add_argument("--inputs", type=int, default=10_000, help="of each parser")
    options.add_argument("--seconds", type=float, default=600, help="at most, of each parser")
    options.add_argument("--only", default="", help="names of parsers, or parts of them: a,b")
    options.add_argument("--seed", type=int, default=0, help="other inputs")
    options.add_argument("--jobs", type=int, default=2, help="parsers at the same time")
    options.add_argument("--keep", action="store_true", help="write failing inputs to the corpus")
    given = options.parse_args()
    words = [word for word in given.only.split(",") if word]
    names = [name for name in PARSERS if not words or any(word in name for word in words)]
    if not names:
        options.error(f"no parser is named {given.only}; there are {', '.join(PARSERS)}")
    failed = 0
    print(f"{len(names)} parsers, {given.inputs:,} inputs or {given.seconds:g} s each\n{_HEAD}")
    with ProcessPoolExecutor(given.jobs, get_context("fork"), max_tasks_per_child=None) as pool:
        running = {
            pool.submit(_run, name, given.inputs, given.seconds, given.seed): name for name in names
        }
        total = 0
        for number, done in enumerate(as_completed(running), 1):
            name, counts = running[done], done.result()
            total += counts.inputs
            failed += len(counts.failures)
            print(_row(name, counts), f"{number}/{len(names)}", flush=True)
            for kind, value in counts.failures.items():
                print(f"    {kind}\n        {ascii(value)[:400]}", flush=True)
                if given.keep:
                    print(f"        {save(PARSERS[name], value)}")
    print(f"{total:,} inputs, {failed} kinds of failures")
    return 1 if failed else 0


def _run(name: str, inputs: int, seconds: float, seed: int) -> Counts:
    shown = time.monotonic()

    def progress(counts: Counts) -> None:
        nonlocal shown
        if time.monotonic() - shown > 30:
            shown = time.monotonic()
            print(f"  {name}: {counts.inputs:,} inputs in {counts.seconds:.0f} s, "
                  f"{len(counts.failures)} kinds of failures", file=sys.stderr)  # fmt: skip

    return run(PARSERS[name], inputs, seconds, seed * 1_000_000, progress)


def _row(name: str, counts: Counts) -> str:
    refused = counts.refused / counts.inputs if counts.inputs else 0
    return (
        f"{name:22} {counts.inputs:9,} {refused:9.0%} {counts.worst_seconds * 1000:9.0f} "
        f"{counts.worst_bytes / 2**20:9.1f} {counts.seconds:9.0f} {len(counts.failures):9}"
    )


if __name__ == "__main__":
    sys.exit(main())
