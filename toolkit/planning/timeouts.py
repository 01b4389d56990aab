"""How long SageMaker must wait before it gives up."""

from __future__ import annotations

from collections.abc import Callable

from toolkit.planning.choice import Choice, chosen
from toolkit.planning.models import Weights
from toolkit.planning.weights import Placed
from toolkit.planning.words import size_text

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
    mounted = _bytes(placed, _is_mounted, target_bytes, drafter_bytes)
    seconds = _in_minutes(SHORTEST + mounted / MOUNT_BYTES_PER_SECOND)
    because = f"{size_text(mounted)} from S3 at 100 MB/s, and a minute"
    if placed.target.kind == "image":
        because = "SageMaker copies no weights; the image has them"
    elif not placed.mounts:
        does = "streams" if placed.target.streamed else "downloads"
        because = f"SageMaker copies no weights; the engine {does} them"
    return chosen(seconds, "download_timeout_seconds", because)


def choose_startup_timeout(
    placed: Placed, target_bytes: int, drafter_bytes: int, gpus: int
) -> Choice[int]:
    """ContainerStartupHealthCheckTimeoutInSeconds: download from the hub, load, compile.

    What is streamed from S3 comes once for each of the ``gpus`` that share a model, and goes to
    the GPU as it comes.
    """
    from_hub = _bytes(placed, lambda weights: weights.kind == "hub", target_bytes, drafter_bytes)
    from_s3 = _bytes(placed, lambda weights: weights.streamed, target_bytes, drafter_bytes) * gpus
    loaded = _bytes(placed, lambda weights: not weights.streamed, target_bytes, drafter_bytes)
    seconds = _in_minutes(
        ENGINE_START_SECONDS
        + from_hub / HUB_BYTES_PER_SECOND
        + from_s3 / MOUNT_BYTES_PER_SECOND
        + loaded / LOAD_BYTES_PER_SECOND
    )
    parts = (
        (from_hub, "from the hub at 50 MB/s"),
        (from_s3, "from S3 at 100 MB/s" + (f" ({gpus} GPUs read all)" if gpus > 1 else "")),
        (loaded, "to the GPU at 200 MB/s"),
    )
    told = "".join(f"{size_text(size)} {how}, " for size, how in parts if size)
    because = f"{told}and {ENGINE_START_SECONDS // 60} minutes to compile"
    return chosen(seconds, "startup_timeout_seconds", because)


def _is_mounted(weights: Weights) -> bool:
    return weights.kind in ("s3", "directory") and not weights.streamed


def _bytes(
    placed: Placed, counts: Callable[[Weights], bool], target_bytes: int, drafter_bytes: int
) -> int:
    total = target_bytes if counts(placed.target) else 0
    if placed.drafter is not None and counts(placed.drafter):
        total += drafter_bytes
    return total


def _in_minutes(seconds: float) -> int:
    return min(max(-int(-seconds // 60) * 60, SHORTEST), LONGEST)
