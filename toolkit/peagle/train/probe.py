"""``peagle train plan --probe``: the rates of a training on this machine, from a short one.

All steps run on a few conversations, and the training ends after some of its steps. Rates count
from the first conversation or prompt that is done, and from the third training step, since a GPU
compiles the first two; what does not grow with the data, such as starts, is counted once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from peagle.errors import NotProved
from peagle.train.data import MOST_PROMPTS
from peagle.train.estimate import Range, Rates, measure_data
from peagle.train.recipe import Training
from peagle.train.run import Run, TrainProgress

ROUNDS, PROMPTS, STEPS = 4, 32, 30
"""Conversations per concurrent request; held-out prompts; training steps."""

_SPREAD = 1.25
"""The ratio of a measured rate to the bounds of its range."""


def measure_rates(
    training: Training, observe: Callable[[TrainProgress], object], answer_tokens: int | None = None
) -> Rates:
    """The rates of this training, in a folder that is removed afterwards. ``answer_tokens`` is
    that of ``measure_data``, by whose tokens rates count. Raises what a training does."""
    data = training.data
    totals, each = dict[str, int](), dict[str, float]()

    def note(progress: TrainProgress) -> None:
        if progress.done:
            totals[progress.step] = progress.total
        if progress.seconds_each is not None:
            each[progress.step] = progress.seconds_each
        observe(progress)

    train, held_out = data.train[: ROUNDS * training.setup.requests], data.held_out[:PROMPTS]
    begun = time.monotonic()
    with TemporaryDirectory(prefix=".peagle-probe-", dir=training.output) as folder:
        recipe, place = replace(training.recipe, epochs=1, max_steps=STEPS), Path(folder).resolve()
        few = replace(data, train=train, held_out=held_out)
        short = replace(training, output=place, work=place, recipe=recipe, data=few)
        run = Run(short, note)
        with suppress(NotProved):  # after so few steps no draft may be accepted
            run.train()
        elapsed, seconds = time.monotonic() - begun, run.seconds

    size = measure_data(train, recipe, answer_tokens)
    answers = seconds.get("answers", 0.0)
    if "answers" in each:
        answers = size.conversations * each["answers"]
    steps = totals.get("training", STEPS)
    step = each.get("training", seconds["training"] / min(STEPS, steps))
    states = totals.get("states", 0) * each.get("states", 0.0)
    prompt = each.get("measured", seconds["measured"] / len(held_out))
    further = min(MOST_PROMPTS, len(data.held_out)) - len(held_out)
    measuring = seconds["measured"] + further * prompt
    rest = elapsed - answers - states - step * min(STEPS, steps) - seconds["measured"]
    regeneration = size.answer_tokens / answers if answers else 1.0
    epoch = steps * step + states / training.recipe.epochs  # saved once, for all epochs
    likely = (regeneration, size.tokens / epoch, max(rest, 0.0), measuring)
    return Rates("measured", *(Range(n / _SPREAD, n, n * _SPREAD) for n in likely))
