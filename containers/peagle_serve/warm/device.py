"""The device that code is compiled for: GPUs as reported by NVML, or the CPU."""

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
    """The device cannot be determined; the message says why."""


def cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, Any]:
    """The processor's name and a digest of its instruction sets, for which code is compiled.

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
        raise UnknownDevice(f"{cpuinfo} does not list the processor's instruction sets")
    model = next((facts[name] for name in _CPU_MODEL if name in facts), "")
    digest = hashlib.sha256(" ".join(sorted(flags.split())).encode()).hexdigest()
    return {"cpu": model, "instructions": digest}


def gpus(visible: str = "", library: Any = None) -> dict[str, Any]:
    """The GPUs' names and compute capabilities, the number in use, and the driver's branch.

    Only the major version of the driver counts: compiled code runs on every driver of a branch,
    and CUDA separates its own caches by driver. ``visible`` is ``CUDA_VISIBLE_DEVICES``,
    ``library`` NVML. Raises UnknownDevice.
    """
    nvml = library or _library()
    with _opened(nvml):
        count = ctypes.c_uint()
        _check(nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)), "counting the GPUs")
        found = [_gpu(nvml, number) for number in range(count.value)]
        driver = ctypes.create_string_buffer(_LONGEST_NAME)
        _check(nvml.nvmlSystemGetDriverVersion(driver, _LONGEST_NAME), "reading the driver version")
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
    doing = f"reading GPU {number}"
    _check(nvml.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle)), doing)
    _check(nvml.nvmlDeviceGetName(handle, name, _LONGEST_NAME), doing)
    capability = (ctypes.byref(major), ctypes.byref(minor))
    _check(nvml.nvmlDeviceGetCudaComputeCapability(handle, *capability), doing)
    return f"{name.value.decode('utf-8', errors='replace')} ({major.value}.{minor.value})"


def _library() -> Any:
    try:
        return ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise UnknownDevice(f"NVML cannot be loaded: {error}") from None


@contextlib.contextmanager
def _opened(nvml: Any) -> Iterator[None]:
    _check(nvml.nvmlInit_v2(), "initializing NVML")
    try:
        yield
    finally:
        nvml.nvmlShutdown()


def _check(status: int, doing: str) -> None:
    if status != 0:
        raise UnknownDevice(f"{doing} failed with NVML error {status}")
