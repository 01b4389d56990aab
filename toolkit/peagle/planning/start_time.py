"""How long a new instance takes until it answers: an estimate, for scaling and for batches.

An instance is found and pulls the image, the weights arrive and are loaded, and the engine starts.
The engine's start is measured (the catalogue's evidence); the rest is not, and the reason says so.
The rates of the weights are those of the timeouts, which are slow cases.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from peagle.catalog.schema import EngineStart
from peagle.catalog.tables import Instance
from peagle.planning.candidates import PairLoad
from peagle.planning.choose_scaling import scales
from peagle.planning.options import Options
from peagle.planning.pins import choose_pins
from peagle.planning.plan import Decision, decide
from peagle.planning.settings import (
    ENGINE_START_SECONDS,
    HUB_BYTES_PER_SECOND,
    LOAD_BYTES_PER_SECOND,
    MOUNT_BYTES_PER_SECOND,
)
from peagle.planning.weights import (
    WeightSizes,
    hub_bytes,
    loaded_bytes,
    mounted_sizes,
    streamed_bytes,
)
from peagle.text import format_duration, format_rate, format_size

INSTANCE_SECONDS = 300
"""For an instance and its image. AWS says "several minutes"; nothing was measured there."""


def choose_start_time(
    options: Options, sizes: WeightSizes, gpus: int, work: PairLoad, instance: Instance
) -> Decision[int | None]:
    """The seconds until a new instance answers, in whole minutes; ``None`` for a plan that does not
    scale."""
    if not scales(options):
        return Decision(None)
    start = start_time(options, sizes, gpus, work, instance)
    return Decision(start.value, start.reasons, start.findings)


def start_time(
    options: Options, sizes: WeightSizes, gpus: int, work: PairLoad, instance: Instance
) -> Decision[int]:
    """The same for any plan. With a pinned archive of compiled code the start is warm. ``gpus`` are
    those of an engine."""
    pins = choose_pins(options)
    is_warm = bool(pins.warm or pins.any_warm)
    measured = _measured(work.catalog.starts, is_warm, work.target.short_name, instance.gpu)
    rest = tuple(_not_measured(sizes, gpus))
    engine = measured.seconds if measured else ENGINE_START_SECONDS
    minutes = math.ceil((engine + sum(seconds for seconds, _ in rest)) / 60)
    parts = [text for _, text in rest]
    if measured is None:
        parts.append(f"{format_duration(engine)} for the engine's start")
    because = f"not measured: {', '.join(parts)}"
    if measured is not None:
        because = f"{_text(measured, is_warm)}; {because}"
    return decide(minutes * 60, "start_time", because, shown=f"about {minutes} min")


def _not_measured(sizes: WeightSizes, gpus: int) -> Iterator[tuple[float, str]]:
    """The seconds and the description of each part that is not measured."""
    yield INSTANCE_SECONDS, f"{format_duration(INSTANCE_SECONDS)} for an instance and its image"
    parts = (
        (hub_bytes(sizes), "from the Hub", HUB_BYTES_PER_SECOND),
        (streamed_bytes(sizes, gpus) + sum(mounted_sizes(sizes)), "from S3",
         MOUNT_BYTES_PER_SECOND),
        (loaded_bytes(sizes), "to the GPU", LOAD_BYTES_PER_SECOND),
    )  # fmt: skip
    for size, where, rate in parts:
        if size:
            yield size / rate, f"{format_size(size)} {where} at {format_rate(rate)}"


def _measured(
    starts: Sequence[EngineStart], is_warm: bool, target: str, gpu: str
) -> EngineStart | None:
    """The slowest measured start of that kind: of this target on this GPU, else on this GPU, else
    of this target, else of any; ``None`` without one."""
    kinds = ("restored", "kept") if is_warm else ("cold",)
    of_kind: list[EngineStart] = []
    for kind in kinds:
        of_kind = of_kind or [one for one in starts if one.kind == kind]
    on_gpu = [one for one in of_kind if f" {gpu} " in f" {one.device} "]
    of_target = [one for one in of_kind if one.target == target]
    both = [one for one in on_gpu if one in of_target]
    found = both or on_gpu or of_target or of_kind
    return max(found, key=lambda one: one.seconds, default=None)


def _text(measured: EngineStart, is_warm: bool) -> str:
    how = "warm" if is_warm else "cold"
    seconds = format_duration(measured.seconds)
    return (
        f"{seconds} for a {how} start, as measured with {measured.target}, dummy weights and vLLM "
        f"{measured.vllm} on an {measured.device} ({measured.file})"
    )
