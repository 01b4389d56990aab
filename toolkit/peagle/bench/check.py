"""Check the load generator: measure a server of known timings, and compare."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from peagle.bench.bench import bench
from peagle.bench.measure import LoadProgress
from peagle.bench.models import BenchWorkload
from peagle.bench.sender import LoadSender
from peagle.bench.simulated import SimulatedTiming, simulated_server
from peagle.bench.targets import target_of_url
from peagle.bench.workloads import make_load
from peagle.errors import EngineError, Refused
from peagle.speed.models import Workload

TOLERANCE = 0.05
"""Largest difference of a mean time, as a share of it."""

SLACK_SECONDS = 0.005
"""Differences below this are the network's and the scheduler's, at any tolerance."""

_OUTPUTS = 40


@dataclass(frozen=True)
class SenderCheck:
    """Mean times in seconds, as the simulated server sent and as the sender measured them.

    The first output is measured from before the request is sent. ``cpu_share`` is the share of one
    CPU that the sender's busiest process used, ``machine_share`` of all CPUs that were busy.
    """

    sender: tuple[str, str]
    concurrency: int
    requests: int
    sent_ttft: float
    measured_ttft: float
    sent_itl: float
    measured_itl: float
    tokens_per_second: float
    cpu_share: float | None
    machine_share: float | None

    @property
    def passed(self) -> bool:
        """Whether both times agree."""
        return _agree(self.sent_ttft, self.measured_ttft) and _agree(
            self.sent_itl, self.measured_itl
        )

    def document(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {**asdict(self), "passed": self.passed}


def check_sender(
    sender: LoadSender,
    concurrency: int = 8,
    timing: SimulatedTiming | None = None,
    progress: LoadProgress = lambda ended, total: None,
) -> SenderCheck:
    """Measure a simulated server on this machine. Raises EngineError when the sender fails."""
    timing = timing or SimulatedTiming()
    size = Workload(64, _OUTPUTS * timing.tokens_per_output)
    load = make_load(BenchWorkload("simulated", size), concurrency)
    with simulated_server(timing) as server:
        target = target_of_url(server.base_url)
        result = bench(target, [load], sender, say=lambda _, ended, total: progress(ended, total))
        row = result.rows[0]
        # The probe's two answers and the warm-up are not measured.
        counted = load.requests * load.repetitions
        sent_ttft, sent_itl = server.ttft[-counted:], server.gaps[-counted * (_OUTPUTS - 1) :]
    if row.incomplete or row.itl is None:
        raise EngineError(f"the check is incomplete: {row.incomplete}", code="load-failed")
    return SenderCheck(
        sender=result.sender,
        concurrency=concurrency,
        requests=counted,
        sent_ttft=fmean(sent_ttft),
        measured_ttft=row.ttft.mean,
        sent_itl=fmean(sent_itl),
        measured_itl=row.itl.mean,
        tokens_per_second=row.tokens_per_second.value,
        cpu_share=row.sender_cpu_share,
        machine_share=row.machine_cpu_share,
    )


def _agree(sent: float, measured: float) -> bool:
    return abs(measured - sent) <= max(TOLERANCE * sent, SLACK_SECONDS)


def require_agreement(found: SenderCheck) -> None:
    """Raise Refused unless the measured times agree with the sent ones."""
    if not found.passed:
        raise Refused(
            f"the measured times differ from the sent ones by more than {TOLERANCE:.0%}",
            "send from a machine with idle CPUs",
            "sender-differs",
        )
