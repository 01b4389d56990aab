"""The device that code is compiled for: GPUs as reported by nvidia-smi, or the CPU."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import Any

_QUERY = ("nvidia-smi", "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader")
_QUERY_SECONDS = 60
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


def gpus(visible: str = "") -> dict[str, Any]:
    """The GPUs' names and compute capabilities, the number in use, and the driver's branch.

    Only the major version of the driver counts: compiled code runs on every driver of a branch,
    and CUDA separates its own caches by driver. ``visible`` is ``CUDA_VISIBLE_DEVICES``. Raises
    UnknownDevice.
    """
    try:
        done = subprocess.run(
            _QUERY, capture_output=True, text=True, check=False, timeout=_QUERY_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnknownDevice(f"nvidia-smi cannot be run: {error}") from None
    rows = [line.split(", ") for line in done.stdout.splitlines()]
    if done.returncode or not rows or any(len(row) != 3 for row in rows):
        output = (done.stderr or done.stdout).strip().partition("\n")[0]
        raise UnknownDevice(f"nvidia-smi reports no GPU: {output[:200]}")
    used = len(visible.split(",")) if visible else len(rows)
    found = [f"{name} ({capability})" for name, capability, _ in rows]
    return {"gpus": found, "used": used, "driver": rows[0][2].partition(".")[0]}
