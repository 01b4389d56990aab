"""The NVIDIA GPUs of this machine, by NVML: what they are, what is free on them, and the machine
as an instance that plans are made for (``--here``).

NVML is the driver's own library, so nothing is loaded on a GPU to look at it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from peagle.catalog.schema import Catalog
from peagle.catalog.tables import HERE, GpuSpeed, Instance
from peagle.engine.machine import Engine, run_python, this_machine
from peagle.errors import Fix, OutOfRange, Refused
from peagle.vllm.gpus import visible_gib

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
_MIB = 2**20

_PER_MULTIPROCESSOR = {
    "sm_75": (64, 1024), "sm_80": (64, 2048), "sm_86": (128, 512), "sm_87": (128, 512),
    "sm_89": (128, 1024), "sm_90": (128, 4096), "sm_100": (128, 8192), "sm_103": (128, 8192),
    "sm_120": (128, 1024), "sm_121": (128, 1024),
}  # fmt: skip
"""Architecture -> CUDA cores of a multiprocessor, and its operations a clock in 16 bits, dense, on
tensor cores. With NVML's cores and highest clock they give the data sheets' rates of the GPUs in
the catalogue within 8 %; GeForce cards have half of it with sums in 32 bits."""


@dataclass(frozen=True)
class Gpu:
    """One GPU as NVML reports it; ``processes`` are the ids of those that use its memory.
    ``memory_gb_per_second`` and ``tflops`` (16 bits, dense) are computed from clocks and widths, 0
    where the driver reports none."""

    index: int
    uuid: str
    name: str
    memory_mib: int
    free_mib: int
    architecture: str
    memory_gb_per_second: float
    tflops: float
    processes: tuple[int, ...] = ()

    @property
    def model(self) -> str:
        """The name without the vendor: ``H100 80GB HBM3``."""
        return re.sub(r"^(NVIDIA|Tesla) ", "", self.name)


@dataclass(frozen=True)
class Gpus:
    """All GPUs, the driver's version, and the newest CUDA that it supports."""

    driver: str
    cuda: str
    gpus: tuple[Gpu, ...]


def find_gpus() -> Gpus | None:
    """The GPUs of this machine; ``None`` without a GPU, without NVIDIA's driver, and where
    ``CUDA_VISIBLE_DEVICES`` is empty, which hides all of them."""
    import pynvml as nvml  # only where a GPU may be

    if os.environ.get(VISIBLE_DEVICES) == "":
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        cuda = nvml.nvmlSystemGetCudaDriverVersion_v2()
        gpus = tuple(_read_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
        driver = nvml.nvmlSystemGetDriverVersion()
    finally:
        nvml.nvmlShutdown()
    return Gpus(driver, f"{cuda // 1000}.{cuda % 1000 // 10}", gpus) if gpus else None


def _read_gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    architecture = f"sm_{major}{minor}"
    bandwidth, tflops, pids = 0.0, 0.0, list[int]()
    with suppress(nvml.NVMLError):  # two transfers a clock
        clock = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM)
        bandwidth = 2 * clock * 1e6 * nvml.nvmlDeviceGetMemoryBusWidth(handle) / 8 / 1e9
    with suppress(nvml.NVMLError, KeyError):
        cores, operations = _PER_MULTIPROCESSOR[architecture]
        clock = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
        multiprocessors = nvml.nvmlDeviceGetNumGpuCores(handle) / cores
        tflops = multiprocessors * operations * clock * 1e6 / 1e12
    with suppress(nvml.NVMLError):
        pids = [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    return Gpu(
        index=index,
        uuid=nvml.nvmlDeviceGetUUID(handle),
        name=nvml.nvmlDeviceGetName(handle),
        memory_mib=memory.total // _MIB,
        free_mib=memory.free // _MIB,
        architecture=architecture,
        memory_gb_per_second=round(bandwidth, 1),
        tflops=round(tflops, 1),
        processes=tuple(sorted(pids)),
    )


_OTHER_NAMES = {"RTX PRO 6000 Blackwell Server Edition": "RTX PRO 6000 SE",
                "RTX PRO 4500 Blackwell Server Edition": "RTX PRO 4500"}  # fmt: skip
_VARIANTS = re.compile(r"\b(PCI[eE]|NVL|MIG|Laptop|Max-Q|GH200|GB200)\b", re.ASCII)
"""Variants that are slower than the GPU of the same name in the catalogue."""


def catalogue_name(gpu: Gpu, names: Collection[str]) -> str | None:
    """The name in the catalogue, such as H100 for ``NVIDIA H100 80GB HBM3``; ``None`` for a GPU
    that it does not have."""
    model = _OTHER_NAMES.get(gpu.model, gpu.model)
    if model in names:
        return model
    first = re.split(r"[ -]", model, maxsplit=1)[0]
    return first if first in names and not _VARIANTS.search(model) else None


def this_machine_in(catalog: Catalog, gpus: Gpus | None = None) -> Catalog:
    """The catalogue with this machine as the instance type ``here``, without a price;
    ``CUDA_VISIBLE_DEVICES`` may limit its GPUs. A GPU that the catalogue does not have is planned
    from what NVML reports, without speeds where it reports no clocks. Raises Refused without a
    GPU, and for several kinds."""
    gpus, machine = visible_gpus(gpus), this_machine()
    kinds = {gpu.name for gpu in gpus.gpus}
    if len(kinds) > 1:
        raise Refused(
            f"this machine has several kinds of GPUs: {', '.join(sorted(kinds))}",
            "show one kind only, with CUDA_VISIBLE_DEVICES",
            code="mixed-gpus",
        )
    gpu, model = gpus.gpus[0], catalog.speed_model
    name = catalogue_name(gpu, {row.gpu for row in model.gpus})
    if name is None and gpu.memory_gb_per_second and gpu.tflops:
        speed = GpuSpeed(
            gpu=gpu.model,
            memory_gb_per_second=gpu.memory_gb_per_second,
            tflops=gpu.tflops,
            fp8_tflops=2 * gpu.tflops if int(gpu.architecture[3:]) >= 89 else None,
            link="pcie",
            link_gb_per_second=31.5,
            source=f"NVML on this machine, {datetime.now(UTC):%Y-%m-%d}",
        )
        model = model.model_copy(update={"gpus": (*model.gpus, speed)})
    here = Instance(
        type=HERE,
        gpu=name or gpu.model,
        gpu_count=len(gpus.gpus),
        gpu_memory_mib=gpu.memory_mib,
        gpu_architecture=gpu.architecture,
        vcpus=machine.cores,
        memory_gib=max(1, machine.memory_bytes // 2**30),
    )
    others = (row for row in catalog.instances.instances if row.type != HERE)
    table = catalog.instances.model_copy(update={"instances": (*others, here)})
    return replace(catalog, instances=table, speed_model=model)


def choose_gpus(gpus: Gpus, count: int, utilization: float, taken: Mapping[str, str]) -> list[Gpu]:
    """``count`` GPUs that are not ``taken`` by another engine (UUID -> its name) and of whose
    memory the share ``utilization`` is free, as vLLM requires at its start. Raises Refused."""
    suitable = [
        gpu
        for gpu in gpus.gpus
        if gpu.uuid not in taken and gpu.free_mib >= _needed_mib(gpu, utilization)
    ]
    if len(suitable) >= count:
        return suitable[:count]
    states = []
    for gpu in gpus.gpus:
        users = [taken[gpu.uuid]] if gpu.uuid in taken else [f"process {n}" for n in gpu.processes]
        used = f", used by {', '.join(users)}" if users else ""
        states.append(f"GPU {gpu.index} ({gpu.model}) has {gpu.free_mib / 1024:.1f} GiB free{used}")
    needed = _needed_mib(gpus.gpus[0], utilization) / 1024
    raise Refused(
        f"the plan needs {count} x {needed:.1f} GiB of free GPU memory; {'; '.join(states)}",
        "stop what uses it (peagle local down), plan for this machine with --here, or lower --set "
        "gpu-memory-utilization=0.9",
        code="gpu-busy",
    )


def _needed_mib(gpu: Gpu, utilization: float) -> float:
    """vLLM compares with the total that CUDA reports."""
    return utilization * visible_gib(gpu.model.partition(" ")[0], gpu.memory_mib) * 1024


_PRINT_CUDA = """
import importlib.util, pathlib, re
torch = importlib.util.find_spec("torch")
if torch and torch.origin:
    text = (pathlib.Path(torch.origin).parent / "version.py").read_text()
    print(*re.findall(r"^cuda.*'([0-9.]+)'", text, re.M))
"""


def check_driver(engine: Engine, gpus: Gpus) -> None:
    """Raise Refused when the engine's torch is for no CUDA, or for a CUDA that the driver is too
    old for: a driver runs what is built for any release of its CUDA's major version (NVIDIA's
    minor version compatibility)."""
    cuda = run_python(engine.python, _PRINT_CUDA)
    if not cuda:
        raise Refused(
            f"{engine.python} has a torch without CUDA",
            Fix("install vLLM for GPUs", ("peagle", "engine", "install", "--gpu")),
            code="engine-without-cuda",
        )
    if int(cuda.partition(".")[0]) > int(gpus.cuda.partition(".")[0]):
        raise Refused(
            f"driver {gpus.driver} supports CUDA {gpus.cuda}, and vLLM {engine.vllm} in "
            f"{engine.python} is built for CUDA {cuda}",
            "update NVIDIA's driver, or use a vLLM that is built for the driver's CUDA",
            code="driver-too-old",
        )


def visible_gpus(gpus: Gpus | None = None) -> Gpus:
    """Of ``gpus``, else of what NVML reports now, those that ``CUDA_VISIBLE_DEVICES`` names, by
    index or UUID; all without it. Raises Refused for a machine without an NVIDIA GPU, and
    OutOfRange."""
    gpus, visible = gpus or find_gpus(), os.environ.get(VISIBLE_DEVICES, "")
    if gpus is None:
        fix = Fix("look at what it has", ("peagle", "doctor"))
        raise Refused("this machine has no NVIDIA GPU, or no driver for it", fix, code="no-gpu")
    if not visible:
        return gpus
    by_name = {name: gpu for gpu in gpus.gpus for name in (str(gpu.index), gpu.uuid)}
    names = [name.strip() for name in visible.split(",")]
    unknown = [name for name in names if name not in by_name]
    if unknown:
        have = ", ".join(str(gpu.index) for gpu in gpus.gpus)
        message = f"CUDA_VISIBLE_DEVICES names {unknown[0][:60]!r}, and this machine has {have}"
        raise OutOfRange(message, "name GPUs of this machine, or unset it")
    return Gpus(gpus.driver, gpus.cuda, tuple(by_name[name] for name in names))
