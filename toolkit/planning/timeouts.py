"""How long SageMaker must wait before it gives up."""

from __future__ import annotations

from toolkit.planning.choice import Choice, chosen
from toolkit.planning.weights import Placed

SHORTEST, LONGEST = 60, 3600
"""Seconds that SageMaker takes for either timeout, from its service model."""

ENGINE_START_SECONDS = 600
"""Compilation, profiling and graph capture of a first start: four times the 147 s measured on an
H200 for a 20B target."""

MOUNT_BYTES_PER_SECOND = 100_000_000
HUB_BYTES_PER_SECOND = 50_000_000
LOAD_BYTES_PER_SECOND = 200_000_000
"""Slow cases of S3 to the instance, Hugging Face to the instance, and disk to GPU."""


def choose_download_timeout(placed: Placed, target_bytes: int, drafter_bytes: int) -> Choice[int]:
    """ModelDataDownloadTimeoutInSeconds: for what SageMaker itself copies from S3."""
    mounted = _bytes(placed, {"s3", "directory"}, target_bytes, drafter_bytes)
    seconds = _in_minutes(SHORTEST + mounted / MOUNT_BYTES_PER_SECOND)
    because = f"{_size(mounted)} from S3 at 100 MB/s, and a minute"
    if not placed.mounts:
        because = "SageMaker copies no weights; the engine downloads them"
    return chosen(seconds, "download_timeout_seconds", because)


def choose_startup_timeout(placed: Placed, target_bytes: int, drafter_bytes: int) -> Choice[int]:
    """ContainerStartupHealthCheckTimeoutInSeconds: download from the hub, load, compile."""
    from_hub = _bytes(placed, {"hub"}, target_bytes, drafter_bytes)
    everything = target_bytes + drafter_bytes
    seconds = _in_minutes(
        ENGINE_START_SECONDS + from_hub / HUB_BYTES_PER_SECOND + everything / LOAD_BYTES_PER_SECOND
    )
    download = f"{_size(from_hub)} from the hub at 50 MB/s, " if from_hub else ""
    because = (
        f"{download}{_size(everything)} to the GPU at 200 MB/s, "
        f"and {ENGINE_START_SECONDS // 60} minutes to compile"
    )
    return chosen(seconds, "startup_timeout_seconds", because)


def _bytes(placed: Placed, kinds: set[str], target_bytes: int, drafter_bytes: int) -> int:
    total = target_bytes if placed.target.kind in kinds else 0
    if placed.drafter is not None and placed.drafter.kind in kinds:
        total += drafter_bytes
    return total


def _in_minutes(seconds: float) -> int:
    return min(max(-int(-seconds // 60) * 60, SHORTEST), LONGEST)


def _size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
