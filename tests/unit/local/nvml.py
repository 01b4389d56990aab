"""A stand-in for NVIDIA's NVML, which no machine without a GPU has: GPUs with the numbers that
NVML reports for real ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple


class Card(NamedTuple):
    """MiB; compute capability; MHz of the memory and its bits; MHz of the processors and CUDA
    cores."""

    name: str
    memory: int
    capability: tuple[int, int]
    memory_clock: int
    bus: int
    clock: int
    cores: int


T4 = Card("Tesla T4", 15360, (7, 5), 5001, 256, 1590, 2560)
A10G = Card("NVIDIA A10G", 23028, (8, 6), 6251, 384, 1710, 10240)
A100 = Card("NVIDIA A100-SXM4-40GB", 40960, (8, 0), 1215, 5120, 1410, 6912)
L4 = Card("NVIDIA L4", 23034, (8, 9), 6251, 192, 2040, 7424)
RTX_4090 = Card("NVIDIA GeForce RTX 4090", 24564, (8, 9), 10501, 384, 3105, 16384)
H100 = Card("NVIDIA H100 80GB HBM3", 81559, (9, 0), 2619, 5120, 1980, 16896)
H200 = Card("NVIDIA H200", 143771, (9, 0), 3201, 6144, 1980, 16896)


class NVMLError(Exception):
    """What the library raises."""


@dataclass
class Nvml:
    """The functions of ``pynvml`` that the toolkit calls. ``free`` is the share of memory that is
    free, of each GPU; a ``silent`` library reports neither clocks nor processes."""

    cards: list[Card]
    free: list[float] = field(default_factory=list)
    cuda: int = 13000
    silent: bool = False
    reads: int = 0
    NVMLError = NVMLError
    NVML_CLOCK_MEM, NVML_CLOCK_SM = 2, 1

    def nvmlInit(self) -> None:
        self.reads += 1
        if not self.cards:
            raise NVMLError("Driver Not Loaded")

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return self.cuda

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.159.04"

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetMemoryInfo(self, index: int) -> Any:
        total, free = self.cards[index].memory << 20, [*self.free, *[1.0] * len(self.cards)]
        return SimpleNamespace(total=total, free=int(total * free[index]))

    def nvmlDeviceGetCudaComputeCapability(self, index: int) -> tuple[int, int]:
        return self.cards[index].capability

    def _clocks(self, index: int) -> Card:
        if self.silent:
            raise NVMLError("Not Supported")
        return self.cards[index]

    def nvmlDeviceGetMaxClockInfo(self, index: int, kind: int) -> int:
        card = self._clocks(index)
        return card.memory_clock if kind == self.NVML_CLOCK_MEM else card.clock

    def nvmlDeviceGetMemoryBusWidth(self, index: int) -> int:
        return self._clocks(index).bus

    def nvmlDeviceGetNumGpuCores(self, index: int) -> int:
        return self._clocks(index).cores

    def nvmlDeviceGetComputeRunningProcesses(self, index: int) -> list[Any]:
        self._clocks(index)
        return [SimpleNamespace(pid=4711)] if index < len(self.free) else []

    def nvmlDeviceGetUUID(self, index: int) -> str:
        return f"GPU-{index}"

    def nvmlDeviceGetName(self, index: int) -> str:
        return self.cards[index].name
