"""What `peagle bench` itself costs, and how exactly its load generator measures.

The load generator is installed into a new PEAGLE_HOME. It measures a simulated server of known
timings, then the tiny pair on this machine's CPU. Our part is all time in which the generator does
not run: probing the server, writing requests, reading records, evaluating. The generator's own
start and end are shown apart.

Goals: our part at most 2 % of the load's time; times within 5 % of those that the simulated server
sent, at up to four requests per CPU of this machine.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from peagle.bench.aiperf import load_sender
from peagle.bench.bench import bench, bench_loads
from peagle.bench.check import TOLERANCE, SenderCheck, check_sender
from peagle.bench.install import install_sender
from peagle.bench.openai_server import OpenAiServer
from peagle.bench.sender import Body, LoadSender, Sent
from peagle.bench.targets import target_of_engine
from peagle.catalog import load_catalog
from peagle.engine.local import start_local, stop_local
from peagle.engine.machine import ENGINE_VARIABLE, find_engine
from peagle.planning import Options, make_plan

GOAL_SHARE = 0.02
CONCURRENCIES = (1, 8, 32)
REQUESTS_PER_CPU = 4
NAME = "bench-load"


@dataclass
class _Timed:
    """A sender whose results are kept."""

    sender: LoadSender
    sent: list[Sent] = field(default_factory=list)

    @property
    def identity(self) -> tuple[str, str]:
        return self.sender.identity

    def send(
        self,
        server: OpenAiServer,
        phases: Sequence[Sequence[Body]],
        concurrency: int,
        progress: Callable[[int], object] = lambda finished: None,
    ) -> Sent:
        """As ``LoadSender.send``."""
        self.sent.append(self.sender.send(server, phases, concurrency, progress))
        return self.sent[-1]


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
    plan = make_plan(Options(pair="tiny", name=NAME), load_catalog())
    engine = start_local(plan)
    try:
        target, sender = target_of_engine(engine), _Timed(load_sender())
        loads = bench_loads(workload, [concurrency])
        began, cpu = time.monotonic(), time.process_time()
        result = bench(target, loads, sender)
        total, cpu = time.monotonic() - began, time.process_time() - cpu
    finally:
        stop_local(NAME, now=True)
    assert not result.incomplete, result.incomplete
    (sent,) = sender.sent
    running = sent.cpu[-1][0] - sent.cpu[0][0]
    load = max(one.end for one in sent.requests) - min(one.start for one in sent.requests)
    return Overhead(load, running - load, total - running, cpu)


def main() -> bool:
    """Install, check and measure; print each number with its goal, and whether all are met."""
    os.environ.setdefault(ENGINE_VARIABLE, str(find_engine("0.28.0").python))
    with tempfile.TemporaryDirectory() as home:
        os.environ["PEAGLE_HOME"] = home
        installed = install_sender()
        print(f"aiperf {installed.version}: {installed.megabytes} MB in {installed.seconds:.0f} s")
        checks = [check_sender(load_sender(), concurrency) for concurrency in CONCURRENCIES]
        for one in checks:
            print(_text(one))
        found = overhead()
    print(
        f"load {found.load:.1f} s, start and end of aiperf {found.generator:.1f} s, our part "
        f"{found.ours:.2f} s: {found.share:.1%} of the load (goal {GOAL_SHARE:.0%}); our CPU time "
        f"{found.cpu:.2f} s"
    )
    few = [one for one in checks if one.concurrency <= REQUESTS_PER_CPU * (os.cpu_count() or 1)]
    return found.share <= GOAL_SHARE and all(one.passed for one in few)


def _text(found: SenderCheck) -> str:
    ttft = found.measured_ttft / found.sent_ttft - 1
    itl = found.measured_itl / found.sent_itl - 1
    share = f"{found.cpu_share or 0:.0%} of a CPU, machine {found.machine_share or 0:.0%} busy"
    return (
        f"{found.concurrency} at a time: time to first output {ttft:+.1%}, between outputs "
        f"{itl:+.1%} (goal {TOLERANCE:.0%}); busiest process {share}"
    )


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
