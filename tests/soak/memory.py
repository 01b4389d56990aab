"""The memory of a target's server processes over time."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import psutil

MAX_GROWTH = 1.05
"""Goal: the largest memory in a later tenth of the run, relative to the end of the first tenth."""
MIN_SECONDS = 300.0
"""The memory of a shorter run is not compared, because caches still fill."""


@dataclass
class Memory:
    """Resident bytes by role, as (second, bytes): the largest process of each role."""

    series: dict[str, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))

    def sample(self, second: float, processes: Mapping[str, Iterable[int]]) -> None:
        for role, pids in processes.items():
            sizes = [size for pid in pids if (size := resident(pid))]
            if sizes:
                self.series[role].append((second, max(sizes)))

    def latest(self) -> dict[str, int]:
        return {role: samples[-1][1] for role, samples in self.series.items()}

    def growth(self, total: float) -> dict[str, float]:
        """Role -> the largest median of a later tenth of the run over that around the end of the
        first tenth."""
        growth = {}
        for role, samples in self.series.items():
            tenths = defaultdict(list)
            for at, size in samples:
                tenths[min(9, int(10 * at / total))].append(size)
            base = [size for at, size in samples if 0.08 * total <= at < 0.12 * total]
            later = [statistics.median(sizes) for tenth, sizes in tenths.items() if tenth]
            if base and later:
                growth[role] = max(later) / statistics.median(base)
        return growth


def resident(pid: int) -> int:
    """Resident bytes of a process; 0 once it has ended."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0
