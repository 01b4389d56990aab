"""What `peagle bench` itself costs.

The load generator is installed into a new PEAGLE_HOME and measures the tiny pair on this machine's
CPU. Our part is all time in which the generator does not run: probing the server, writing requests,
reading records, evaluating. The generator's own start and end are shown apart.

Goal: our part at most 2 % of the load's time.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

from peagle.bench.load import Aiperf, Sent, bench, find_sender, sender_installation
from peagle.bench.targets import open_engine
from peagle.bench.workloads import make_loads
from peagle.catalog import load_catalog
from peagle.engine.local import start_local, stop_local
from peagle.engine.machine import ENGINE_VARIABLE, find_engine
from peagle.planning import Options, make_plan

GOAL_SHARE = 0.02
NAME = "bench-load"


@dataclass(frozen=True)
class _Timed(Aiperf):
    """A sender whose results and seconds are kept."""

    sent: list[tuple[Sent, float]] = field(default_factory=list)

    def send(self, *arguments: Any, **options: Any) -> Sent:
        """As ``Aiperf.send``."""
        began = time.monotonic()
        sent = super().send(*arguments, **options)
        self.sent.append((sent, time.monotonic() - began))
        return sent


@dataclass(frozen=True)
class Overhead:
    """Seconds of the load (first request to last answer, with the warm-up), of the generator's
    start and end, of our part, and of our CPU time."""

    load: float
    generator: float
    ours: float
    cpu: float

    @property
    def share(self) -> float:
        """Our part as a share of the load."""
        return self.ours / self.load


def overhead(workload: str = "short-prompt", concurrency: int = 8) -> Overhead:
    """Measure the tiny pair on this machine with the default workload."""
    catalog = load_catalog()
    plan = make_plan(Options(pair="tiny", name=NAME), catalog)
    engine = start_local(plan)
    try:
        target, sender = open_engine(engine, catalog), _Timed(**vars(find_sender()))
        loads = make_loads(workload, [concurrency])
        began, cpu = time.monotonic(), time.process_time()
        result = bench(target, loads, sender)
        total, cpu = time.monotonic() - began, time.process_time() - cpu
    finally:
        stop_local(NAME, now=True)
    assert not result.incomplete, result.incomplete
    ((sent, running),) = sender.sent
    load = max(request.end for request in sent.requests) - min(
        request.start for request in sent.requests
    )
    return Overhead(load, running - load, total - running, cpu)


def main() -> bool:
    """Install and measure; print each number with its goal, and whether it is met."""
    os.environ.setdefault(ENGINE_VARIABLE, str(find_engine("0.28.0").python))
    with tempfile.TemporaryDirectory() as home:
        os.environ["PEAGLE_HOME"] = home
        sender_installation().install(None, print)
        share = overhead()
    print(
        f"load {share.load:.1f} s, start and end of aiperf {share.generator:.1f} s, our part "
        f"{share.ours:.2f} s: {share.share:.1%} of the load (goal {GOAL_SHARE:.0%}); our CPU time "
        f"{share.cpu:.2f} s"
    )
    return share.share <= GOAL_SHARE


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
