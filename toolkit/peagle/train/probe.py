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
from peagle.train.run import Run, Step, TrainProgress
from peagle.train.training import Training

ROUNDS, PROMPTS, STEPS = 4, 32, 30
"""Conversations per concurrent request; held-out prompts; training steps."""

_SPREAD = 1.25
"""The ratio of a measured rate to the bounds of its range."""


class _Clock:
    """How far each step of a run was, and when."""

    def __init__(self, observe: Callable[[TrainProgress], object]) -> None:
        self._observe = observe
        self._marks: dict[str, list[tuple[float, int]]] = {}
        self.totals: dict[str, int] = {}
        self.seconds_per_step: float | None = None

    def observe(self, progress: TrainProgress) -> None:
        """Note the time at which more was done."""
        marks = self._marks.setdefault(progress.step, [(0.0, 0)])
        if progress.done > marks[-1][1]:
            marks.append((time.monotonic(), progress.done))
            self.totals[progress.step] = progress.total
        if progress.step == "training" and progress.seconds_left:
            self.seconds_per_step = progress.seconds_left / (progress.total - progress.done)
        self._observe(progress)

    def seconds_each(self, step: Step, otherwise: float) -> float:
        """The seconds of a conversation or prompt, without the first ones."""
        marks = self._marks.get(step, [])[1:]
        if len(marks) < 2:
            return otherwise
        (begun, first), (ended, last) = marks[0], marks[-1]
        return (ended - begun) / (last - first)


def measure_rates(
    training: Training, observe: Callable[[TrainProgress], object], answer_tokens: int | None = None
) -> Rates:
    """The rates of this training, in a folder that is removed afterwards. ``answer_tokens`` is
    that of ``measure_data``, by whose tokens rates count. Raises what a training does."""
    request, data, clock = training.request, training.data, _Clock(observe)
    train, held_out = data.train[: ROUNDS * training.setup.requests], data.held_out[:PROMPTS]
    begun = time.monotonic()
    with TemporaryDirectory(prefix=".peagle-probe-", dir=request.output) as folder:
        recipe = replace(request.recipe, epochs=1, max_steps=STEPS)
        short = replace(request, output=Path(folder).resolve(), recipe=recipe, work=None)
        few = replace(data, train=train, held_out=held_out)
        run = Run(replace(training, request=short, data=few), clock.observe)
        with suppress(NotProved):  # after so few steps no draft may be accepted
            run.train()
        elapsed, seconds = time.monotonic() - begun, run.seconds

    size = measure_data(train, recipe, answer_tokens)
    answers = size.conversations * clock.seconds_each(
        "answers", seconds.get("answers", 0.0) / size.conversations
    )
    steps = clock.totals.get("training", STEPS)
    step = clock.seconds_per_step or seconds["training"] / min(STEPS, steps)
    states = clock.totals.get("states", 0) * clock.seconds_each("states", 0.0)
    prompt = clock.seconds_each("measured", seconds["measured"] / len(held_out))
    further = min(MOST_PROMPTS, len(data.held_out)) - len(held_out)
    measuring = seconds["measured"] + further * prompt
    rest = elapsed - answers - states - step * min(STEPS, steps) - seconds["measured"]
    regeneration = size.answer_tokens / answers if answers else 1.0
    epoch = steps * step + states / request.recipe.epochs  # saved once, for all epochs
    likely = (regeneration, size.tokens / epoch, max(rest, 0.0), measuring)
    return Rates("measured", *(Range(n / _SPREAD, n, n * _SPREAD) for n in likely))
