"""The host of a measurement: its GPUs and driver, its CPUs, and waiting for an idle GPU."""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

ENGINE_ENVIRONMENT: Mapping[str, str] = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
"""For every measured engine: its files are local, and its usage is not reported."""

_IDLE_BYTES = 3 << 30
"""A GPU with less memory in use than this is free for the next engine."""
_WAIT_SECONDS = 30


def gpu_and_driver() -> tuple[str, str]:
    """The GPUs, such as ``2 x NVIDIA H200``, and the driver's version, from ``nvidia-smi``."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    lines = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    name, _, driver = lines[0].partition(", ")
    return f"{len(lines)} x {name}" if len(lines) > 1 else name, driver


def cpus() -> dict[str, int | str]:
    """The number of this machine's CPUs, and their model."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line for line in lines if line.startswith("model name")), "")
    return {"cpus": os.cpu_count() or 0, "cpu": model.partition(":")[2].strip()}


def cpu_share(number: int, streams: int) -> list[int]:
    """The CPUs of worker ``number`` when ``streams`` workers measure on one GPU each."""
    cpus = sorted(os.sched_getaffinity(0))
    each = max(1, len(cpus) // streams)
    return cpus[number * each : (number + 1) * each] or cpus


def yield_cpus() -> list[int]:
    """Restrict this process to the last quarter of its CPUs while another one is measured.

    Returns the others, for ``os.sched_setaffinity`` when this process is measured itself.
    """
    cpus = sorted(os.sched_getaffinity(0))
    waiting = cpus[-max(1, len(cpus) // 4) :]
    os.sched_setaffinity(0, waiting)
    return cpus[: -len(waiting)] or cpus


def lock_gpus(lock: TextIO, gpus: int) -> None:
    """Lock the first ``gpus`` visible GPUs and wait until the previous engine has left them.

    The lock holds until the file is closed. After 30 s the GPUs count as free.
    """
    # Not the toolkit's lock: workers run in vLLM's Python, whose filelock has another version.
    fcntl.flock(lock, fcntl.LOCK_EX)
    devices = [int(device) for device in os.environ["CUDA_VISIBLE_DEVICES"].split(",")][:gpus]
    end = time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < end and max(map(_used_bytes, devices)) > _IDLE_BYTES:
        time.sleep(0.2)


def wait_for_idle(gpu: str, seconds: float = _WAIT_SECONDS) -> None:
    """Wait until the previous engine has left a GPU, without importing vLLM."""
    end = time.monotonic() + seconds
    query = ["nvidia-smi", "-i", gpu, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    while time.monotonic() < end:
        done = subprocess.run(query, capture_output=True, text=True)
        if done.returncode != 0 or int(done.stdout.split()[0]) << 20 < _IDLE_BYTES:
            return
        time.sleep(0.3)


def _used_bytes(device: int) -> int:
    """The GPU memory in use according to the driver, without initializing CUDA."""
    from vllm.third_party import pynvml

    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(device)
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    finally:
        pynvml.nvmlShutdown()
