"""How long a start takes: SageMaker's two timeouts, and the time until a new instance answers.

An instance is found and pulls the image, the weights arrive and are loaded, and the engine starts.
The engine's start is measured (the catalogue's evidence); the rest is not, and the reason says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from peagle.catalog.schema import EngineStart
from peagle.catalog.tables import Instance
from peagle.errors import Fix, OutOfRange
from peagle.findings import note, warning
from peagle.options import Options
from peagle.planning.engines import Load
from peagle.planning.pins import choose_pins
from peagle.planning.plan import Decision, decide
from peagle.planning.weights import WeightSizes, bytes_by_way
from peagle.text import exact_duration, format_duration, format_rate, format_size

SHORTEST, LONGEST = 60, 3600
"""SageMaker's bounds of both timeouts in seconds, from its service model."""

ENGINE_START_SECONDS = 600
"""For compilation, profiling and graph capture of a first start: four times the 147 s measured on
an H200 with a 20B target."""

INSTANCE_SECONDS = 300
"""For an instance and its image. AWS says "several minutes"; nothing was measured there."""

MOUNT_BYTES_PER_SECOND = 100_000_000
HUB_BYTES_PER_SECOND = 50_000_000
LOAD_BYTES_PER_SECOND = 200_000_000
"""Slow cases of S3 to instance, Hugging Face to instance, and disk to GPU."""


def choose_download_timeout(options: Options, sizes: WeightSizes) -> Decision[int]:
    """ModelDataDownloadTimeoutInSeconds: for the weights that SageMaker copies from S3."""
    mounted, target = bytes_by_way(sizes).mounted, sizes[0][0]
    if mounted:
        rate = format_rate(MOUNT_BYTES_PER_SECOND)
        because = f"{format_size(mounted)} from S3 at {rate}, and a minute"
    elif target.kind == "image":
        because = "SageMaker copies no weights; the image contains them"
    else:
        does = "streams" if target.streamed else "downloads"
        because = f"SageMaker copies no weights; the engine {does} them"
    needed = SHORTEST + mounted / MOUNT_BYTES_PER_SECOND
    return _timeout("download", options.pair, options.download_timeout, needed, because)


def choose_startup_timeout(options: Options, sizes: WeightSizes, gpus: int) -> Decision[int]:
    """ContainerStartupHealthCheckTimeoutInSeconds: download from the Hub, load, compile."""
    size = bytes_by_way(sizes, gpus)
    readers = f" ({gpus} GPUs read all)" if gpus > 1 else ""
    parts = (
        (size.hub, "from the Hub", HUB_BYTES_PER_SECOND, ""),
        (size.streamed, "from S3", MOUNT_BYTES_PER_SECOND, readers),
        (size.loaded, "to the GPU", LOAD_BYTES_PER_SECOND, ""),
    )
    because = "".join(
        f"{format_size(taken)} {where} at {format_rate(rate)}{by}, "
        for taken, where, rate, by in parts
        if taken
    )
    because += f"and {ENGINE_START_SECONDS // 60} minutes to compile"
    needed = ENGINE_START_SECONDS + sum(taken / rate for taken, _, rate, _ in parts)
    return _timeout("startup", options.pair, options.startup_timeout, needed, because)


def _timeout(kind: str, pair: str, asked: int | None, needed: float, because: str) -> Decision[int]:
    """The user's timeout, else the needed one in whole minutes; both within SageMaker's bounds.

    Raises UserError for a timeout that SageMaker rejects.
    """
    what, flag = f"{kind}_timeout_seconds", f"{kind}_timeout"
    if asked is not None and not SHORTEST <= asked <= LONGEST:
        raise OutOfRange(
            f"{flag} {exact_duration(asked)} is outside of SageMaker's limits",
            f"use {SHORTEST}s to {exact_duration(LONGEST)}",
        )
    minutes = max(-int(-needed // 60) * 60, SHORTEST)
    if minutes > LONGEST:
        message = (
            f"a slow case takes {format_duration(minutes)} ({because}); SageMaker waits at most "
            f"{format_duration(LONGEST)}"
        )
        shorter = Fix("use weights_by stream: the engine reads the weights, or a smaller target")
        if kind == "startup":
            shorter = Fix(
                "choose a smaller target, or let SageMaker mount weights in S3 (--model-source): "
                "that copy does not count as startup",
                ("peagle", "weights", "sync", pair, "s3://BUCKET/PREFIX"),
            )
        finding = warning("timeout-at-maximum", what, message, shorter)
        chosen = LONGEST if asked is None else asked
        return replace(decide(chosen, what, because), findings=(finding,))
    if asked is None:
        return decide(minutes, what, because)
    if asked < minutes:
        message = f"{flag} {exact_duration(asked)} is less than a slow case needs: {because}"
        fix = f"use {flag} {exact_duration(minutes)}, or omit it"
        return Decision(asked, findings=(note("timeout-short", what, message, fix),))
    return Decision(asked)


def start_time(
    options: Options, sizes: WeightSizes, gpus: int, load: Load, instance: Instance
) -> Decision[int]:
    """The seconds until a new instance answers, in whole minutes. With a pinned archive of compiled
    code the start is warm. ``gpus`` are those of an engine."""
    pins = choose_pins(options)
    is_warm = bool(pins.warm or pins.any_warm)
    measured = _measured_start(load.catalog.starts, is_warm, load.target.short_name, instance.gpu)
    size = bytes_by_way(sizes, gpus)
    seconds, parts = float(INSTANCE_SECONDS), []
    parts.append(f"{format_duration(INSTANCE_SECONDS)} for an instance and its image")
    for taken, where, rate in (
        (size.hub, "from the Hub", HUB_BYTES_PER_SECOND),
        (size.streamed + size.mounted, "from S3", MOUNT_BYTES_PER_SECOND),
        (size.loaded, "to the GPU", LOAD_BYTES_PER_SECOND),
    ):
        if taken:
            seconds += taken / rate
            parts.append(f"{format_size(taken)} {where} at {format_rate(rate)}")
    engine, how = ENGINE_START_SECONDS, "warm" if is_warm else "cold"
    if measured is None:
        parts.append(f"{format_duration(engine)} for the engine's start")
    because = f"not measured: {', '.join(parts)}"
    minutes = math.ceil(((measured.seconds if measured else engine) + seconds) / 60)
    if measured is not None:
        because = (
            f"{format_duration(measured.seconds)} for a {how} start, as measured with "
            f"{measured.target}, dummy weights and vLLM {measured.vllm} on an {measured.device} "
            f"({measured.file}); {because}"
        )
    return decide(minutes * 60, "start_time", because, shown=f"about {minutes} min")


def _measured_start(
    starts: Sequence[EngineStart], is_warm: bool, target: str, gpu: str
) -> EngineStart | None:
    """The slowest measured start of that kind: of this target on this GPU, else on this GPU, else
    of this target, else of any; ``None`` without one."""
    of_kind: list[EngineStart] = []
    for kind in ("restored", "kept") if is_warm else ("cold",):
        of_kind = of_kind or [start for start in starts if start.kind == kind]
    on_gpu = [start for start in of_kind if f" {gpu} " in f" {start.device} "]
    of_target = [start for start in of_kind if start.target == target]
    both = [start for start in on_gpu if start in of_target]
    nearest = both or on_gpu or of_target or of_kind
    return max(nearest, key=lambda start: start.seconds, default=None)
