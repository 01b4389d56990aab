"""A batch: a number of requests to be done by the lowest total cost, within a time if required.

The load is the plan's to choose: the number of concurrent requests with the lowest total cost, on
as many instances as the time requires. Total cost and time include one start of the instances.
"""

from __future__ import annotations

from collections.abc import Callable

from peagle.errors import OptionMissing, OutOfRange
from peagle.options import Options
from peagle.planning.candidates import Candidate
from peagle.planning.plan import Decision, decide
from peagle.planning.start import INSTANCE_SECONDS
from peagle.text import exact_duration, format_usd

LOADS = tuple(8 * 2**power for power in range(11))
"""Concurrent requests of the whole endpoint that are compared."""

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
    if options.within is not None and options.within <= INSTANCE_SECONDS:
        raise OutOfRange(
            f"--within {exact_duration(options.within)}: an instance and its image alone take "
            f"about {exact_duration(INSTANCE_SECONDS)}",
            "use a longer time, such as 2h",
        )


def choose_load_of_batch(
    options: Options, best_of: Callable[[Options], list[Candidate]]
) -> tuple[Decision[Options], Options]:
    """The options with the number of concurrent requests at which the batch costs least on the best
    candidates, of those that meet what is required; where none does, at which it is the fastest.
    And the same for the last of the candidates, the target without speculation."""
    if options.requests is None or options.concurrency is not None:
        return Decision(options), options
    best: dict[bool, tuple[tuple[bool, float], Options]] = {}
    rounds = 0
    for load in sorted({min(load, options.requests) for load in LOADS}):
        tried, rounds = options.model_copy(update={"concurrency": load}), rounds + 1
        candidates = best_of(tried)
        for candidate in candidates:
            batch, speed = candidate.batch, candidate.tokens_per_second
            if batch is None or not speed:
                continue
            meets = candidate.meets and candidate.holds_load and batch.usd is not None
            key = (not meets, batch.usd if meets and batch.usd is not None else -speed)
            for alone in {False, candidate is candidates[-1]}:
                if alone not in best or key < best[alone][0]:
                    best[alone], rounds = (key, tried), 0
        if rounds > _ROUNDS_WITHOUT_GAIN and not best.get(False, ((True,),))[0][0]:
            break
    if not best:
        return Decision(options), options
    (missed, usd), chosen = best[False]
    because = f"the lowest total cost of the batch, {format_usd(usd)}"
    if missed:
        because = "the fastest; the batch is not done in time"
    shown = str(chosen.concurrency)
    return decide(chosen, "concurrency", because, shown=shown), best.get(True, best[False])[1]
