"""The interface between a bench and the program that sends its load."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from peagle.bench.openai_server import OpenAiServer

Body = Mapping[str, Any]
"""A complete request body; it asks for a stream with token counts."""


@dataclass(frozen=True)
class SentRequest:
    """One request as the sender timed it.

    ``repetition`` counts from 1; 0 is the warm-up. ``start`` and ``end`` are in seconds since 1970,
    ``ttft`` until the first output; ``gaps`` are between outputs. The server counts the tokens.
    ``error`` is the message of a failed request, whose other values may be missing.
    """

    repetition: int
    start: float
    end: float
    ttft: float | None = None
    gaps: tuple[float, ...] = ()
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    error: str = ""


@dataclass(frozen=True)
class Sent:
    """All requests of a load, also of one that ended early: ``error`` is then why.

    ``cpu`` are pairs of a time in seconds since 1970 and the CPU seconds that each process of the
    sender has used until then, by its id. ``machine`` are such times with the busy and with all CPU
    seconds of this machine.
    """

    requests: tuple[SentRequest, ...]
    cpu: tuple[tuple[float, Mapping[int, float]], ...] = ()
    machine: tuple[tuple[float, float, float], ...] = ()
    error: str = ""


class LoadSender(Protocol):
    """Sends requests at a constant concurrency and times their outputs."""

    @property
    def identity(self) -> tuple[str, str]:
        """Name and version, for the result."""

    def send(
        self,
        server: OpenAiServer,
        phases: Sequence[Sequence[Body]],
        concurrency: int,
        progress: Callable[[int], object] = lambda finished: None,
    ) -> Sent:
        """Send the bodies of each phase, the warm-up first; a phase begins when the previous one
        has ended.

        ``progress`` receives the number of finished requests. Requests that fail are results.
        Raises EngineError when the sender itself fails before it sends anything.
        """


def busiest_share(sent: Sent, start: float, end: float) -> float | None:
    """The share of one CPU that the busiest process of the sender used between two times, for a
    shorter time than between readings by those around it; ``None`` without them."""
    inside = [reading for reading in sent.cpu if start <= reading[0] <= end]
    if len(inside) < 2:
        earlier = [reading for reading in sent.cpu if reading[0] < start][-1:]
        inside = earlier + inside + [reading for reading in sent.cpu if reading[0] > end][:1]
    if len(inside) < 2:
        return None
    (first, before), (last, after) = inside[0], inside[-1]
    if last <= first:
        return None
    used = (seconds - before.get(process, 0.0) for process, seconds in after.items())
    return max(used, default=0.0) / (last - first)


def machine_share(sent: Sent, start: float, end: float) -> float | None:
    """The share of this machine's CPUs that were busy between two times, by any process; ``None``
    with fewer than two readings in between."""
    inside = [reading for reading in sent.machine if start <= reading[0] <= end]
    if len(inside) < 2:
        return None
    (_, busy, total), (_, later_busy, later_total) = inside[0], inside[-1]
    return (later_busy - busy) / (later_total - total) if later_total > total else None
