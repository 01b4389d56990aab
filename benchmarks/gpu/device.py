"""Which GPUs a host has, and their driver, as the driver's own program says."""

from __future__ import annotations

import subprocess


def gpu_and_driver() -> tuple[str, str]:
    """Such as ``2 x NVIDIA H200``, and the driver's version."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    said = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    name, _, driver = said[0].partition(", ")
    return f"{len(said)} x {name}" if len(said) > 1 else name, driver
