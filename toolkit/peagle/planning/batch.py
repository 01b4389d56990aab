"""A batch: a number of requests to be done by the lowest total cost, within a time if required.

The load is the plan's to choose: the number of concurrent requests with the lowest total cost, on
as many instances as the time requires. Total cost and time include one start of the instances.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from peagle.errors import OptionMissing, OutOfRange
from peagle.planning.candidates import Candidate
from peagle.planning.options import Options
from peagle.planning.plan import Batch, Decision, decide
from peagle.planning.settings import ENGINE_START_SECONDS
from peagle.planning.start_time import INSTANCE_SECONDS
from peagle.text import exact_duration, format_usd

LOADS = tuple(8 * 2**power for power in range(11))
"""Concurrent requests of the whole endpoint that are compared."""

START_SECONDS = INSTANCE_SECONDS + ENGINE_START_SECONDS
"""Until the instances answer: billed, and part of the time."""

_ROUNDS_WITHOUT_GAIN = 2
"""Larger loads are not compared after so many that cost more."""


def check_batch(options: Options) -> None:
    """Raise UserError for a time without a number of requests, and for numbers below 1."""
    if options.requests is None:
        if options.within is not None:
            raise OptionMissing("--within requires --requests", "add --requests, such as 1m")
        return
    for flag, value in (("--requests", options.requests), ("--within", options.within)):
        if value is not None and value < 1:
            raise OutOfRange(f"{flag} {value} is less than 1", "use a larger number")
    if options.within is not None and options.within <= START_SECONDS:
        raise OutOfRange(
            f"--within {exact_duration(options.within)}: instances take about "
            f"{exact_duration(START_SECONDS)} to start",
            "use a longer time, such as 2h",
        )


def with_required_speed(options: Options, output_tokens: int) -> Options:
    """The options of a batch with the tokens per second that its time requires."""
    if options.requests is None or options.within is None:
        return options
    speed = options.requests * output_tokens / (options.within - START_SECONDS)
    least = max(speed, options.min_tokens_per_second or 0.0)
    return options.model_copy(update={"min_tokens_per_second": least})


def choose_load_of_batch(
    options: Options, output_tokens: int, best_of: Callable[[Options], Candidate | None]
) -> Decision[Options]:
    """The options with the number of concurrent requests at which the batch costs least on the best
    candidate, of those that meet what is required; where none does, at which it is the fastest."""
    if options.requests is None or options.concurrency is not None:
        return Decision(options)
    best: tuple[tuple[bool, float], Options] | None = None
    rounds = 0
    for load in LOADS:
        tried = options.model_copy(update={"concurrency": load})
        candidate = best_of(tried)
        if candidate is None:
            continue
        speed, usd_per_hour = candidate.tokens_per_second, candidate.usd_per_hour
        batch = plan_batch(tried, output_tokens, speed, usd_per_hour)
        if batch is None or not speed:
            continue
        meets = candidate.meets(options) and candidate.holds_load and batch.usd is not None
        key = (not meets, batch.usd if meets and batch.usd is not None else -speed)
        if best is None or key < best[0]:
            best, rounds = (key, tried), 0
        elif not best[0][0]:
            rounds += 1
        if rounds == _ROUNDS_WITHOUT_GAIN or load >= options.requests:
            break
    if best is None:
        return Decision(options)
    (missed, usd), chosen = best
    because = f"the lowest total cost of the batch, {format_usd(usd)}"
    if missed:
        because = "the fastest; the batch is not done in time"
    return decide(chosen, "concurrency", because, shown=str(chosen.concurrency))


def plan_batch(
    options: Options, output_tokens: int, tokens_per_second: float | None, usd: float | None
) -> Batch | None:
    """How long the batch takes at this speed, and what it costs with ``usd`` per hour."""
    if options.requests is None:
        return None
    batch = Batch(requests=options.requests, within_seconds=options.within)
    return batch_at(batch, output_tokens, tokens_per_second, usd)


def batch_at(
    batch: Batch, output_tokens: int, tokens_per_second: float | None, usd: float | None
) -> Batch:
    """The same batch at another speed and another price per hour."""
    seconds = None
    if tokens_per_second:
        seconds = round(START_SECONDS + batch.requests * output_tokens / tokens_per_second, 1)
    total = None if seconds is None or usd is None else round(seconds / 3600 * usd, 2)
    return batch.model_copy(update={"seconds": seconds, "usd": total})


def least_hours(options: Options, output_tokens: int, tokens_per_second: float) -> int:
    """Whole hours within which the batch is done at this speed."""
    seconds = START_SECONDS + (options.requests or 0) * output_tokens / tokens_per_second
    return math.ceil(seconds / 3600)
