"""For which device code is compiled here: GPUs as NVIDIA's library names them, or the CPU."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_LONGEST_NAME = 96
_CPU_MODEL = ("model name", "CPU part", "Processor")
_CPU_FLAGS = ("flags", "Features")


class UnknownDevice(Exception):
    """What code is compiled for cannot be told. The text says why."""


def cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, Any]:
    """The processor's name, and a digest of what it can do: code is compiled for just that.

    Raises UnknownDevice.
    """
    try:
        first = cpuinfo.read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    except OSError as error:
        raise UnknownDevice(str(error)) from None
    pairs = (line.partition(":") for line in first.splitlines())
    facts = {name.strip(): value.strip() for name, _, value in pairs}
    flags = next((facts[name] for name in _CPU_FLAGS if name in facts), "")
    if not flags:
        raise UnknownDevice(f"{cpuinfo} does not say what the processor can do")
    model = next((facts[name] for name in _CPU_MODEL if name in facts), "")
    digest = hashlib.sha256(" ".join(sorted(flags.split())).encode()).hexdigest()
    return {"cpu": model, "instructions": digest}


def gpus(visible: str = "", library: Any = None) -> dict[str, Any]:
    """The GPUs' names and compute capabilities, how many may be used, and the driver's branch.

    Of the driver only the first number counts: what is compiled runs on every driver of a branch,
    and what CUDA keeps per driver it keeps apart itself. ``visible`` is what
    ``CUDA_VISIBLE_DEVICES`` says, ``library`` NVIDIA's (NVML). Raises UnknownDevice.
    """
    nvml = library or _library()
    with _opened(nvml):
        count = ctypes.c_uint()
        _check(nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)), "counting the GPUs")
        found = [_gpu(nvml, number) for number in range(count.value)]
        driver = ctypes.create_string_buffer(_LONGEST_NAME)
        _check(nvml.nvmlSystemGetDriverVersion(driver, _LONGEST_NAME), "asking for the driver")
    if not found:
        raise UnknownDevice("there is no GPU")
    branch = driver.value.decode("utf-8", errors="replace").partition(".")[0]
    used = len(visible.split(",")) if visible else len(found)
    return {"gpus": found, "used": used, "driver": branch}


def _gpu(nvml: Any, number: int) -> str:
    """Such as ``NVIDIA H200 (9.0)``."""
    handle = ctypes.c_void_p()
    name = ctypes.create_string_buffer(_LONGEST_NAME)
    major, minor = ctypes.c_int(), ctypes.c_int()
    asked = f"asking for GPU {number}"
    _check(nvml.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle)), asked)
    _check(nvml.nvmlDeviceGetName(handle, name, _LONGEST_NAME), asked)
    capability = (ctypes.byref(major), ctypes.byref(minor))
    _check(nvml.nvmlDeviceGetCudaComputeCapability(handle, *capability), asked)
    return f"{name.value.decode('utf-8', errors='replace')} ({major.value}.{minor.value})"


def _library() -> Any:
    try:
        return ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise UnknownDevice(f"NVIDIA's library cannot be loaded: {error}") from None


@contextlib.contextmanager
def _opened(nvml: Any) -> Iterator[None]:
    _check(nvml.nvmlInit_v2(), "opening NVIDIA's library")
    try:
        yield
    finally:
        nvml.nvmlShutdown()


def _check(status: int, doing: str) -> None:
    if status != 0:
        raise UnknownDevice(f"{doing} failed with error {status} of NVIDIA's library")
