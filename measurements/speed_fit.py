"""Fits the constants of the performance model to measured speeds, by least squares.

A decode step is a sum of terms with one constant each (``peagle.speed.step``), once it is known
which kernels wait for memory, so the constants follow from the median ITL of the rows by linear
least squares of the relative error, repeated with the kernels that wait for memory with the
constants found. Every constant is held near a physical guess (``PRIOR``) where the rows do not
determine it, and outliers weigh less. Times to the first token determine the constants of prefill,
and with rows beyond the largest CUDA graph the launch of their kernels.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import mul
from typing import NamedTuple

from measurements.speed_rows import Row, catalog, summarize_times
from peagle.catalog.tables import SpeedModel, StepConstants
from peagle.speed.estimate import MEASURED_STEP
from peagle.speed.step import Terms, launched, prefill_steps, uncaptured_seconds

LINEAR = ("step", "layer", "request", "weights", "cache", "compute", "grouped", "converted",
          "logits", "drafter", "drafter_pass")  # fmt: skip
PRIOR = {
    "step": (1.0e-3, 0.7),
    "layer": (4.0e-5, 0.7),
    "request": (1.0e-5, 1.0),
    "weights": (1.2, 0.25),
    "cache": (1.5, 0.5),
    "compute": (1.4, 0.1),
    "grouped": (2.4, 0.3),
    "converted": (60.0, 0.3),
    "logits": (5.0, 0.5),
    "drafter": (5.0e-4, 0.7),
    "drafter_pass": (1.0e-4, 0.7),
}
"""A guess of each constant and its uncertainty as a share of it. With the guess of ``weights``,
``compute``, ``grouped`` or ``converted`` a fifth higher or lower, the medians of held-out errors
are at most 6 % and their 90th percentiles 23 %."""

LAUNCHES = {"prefill_layer": 5e-4, "prefill_uncaptured": 5e-2, "uncaptured": 5e-2}
"""Guesses of the seconds of launches: of 10 kernels, and of 1,000, at 50 microseconds."""

_RATES = ("weights", "cache", "compute", "grouped")
"""Factors on the time that the data sheet implies."""

_NOISE = 0.06
"""The relative error that a row is expected to have; larger ones weigh less."""

_ROUNDS = 8
"""Rounds until the kernels that wait for memory and the weights of the rows stay the same."""


def fitted(of: Sequence[Row], model: SpeedModel) -> SpeedModel:
    """``model`` with the constants that fit these rows best."""
    guesses = {name: guess for name, (guess, _) in PRIOR.items()}
    constants = model.constants.model_copy(update=guesses | LAUNCHES)
    weights: list[float] = []
    for _ in range(_ROUNDS):
        constants, weights = _linear(_steps(of, model, constants), constants, weights)
        constants = constants.model_copy(update=_others(of, model, constants))
        launches = {
            "prefill_uncaptured": _best_launch(_uncaptured_prompts(of, constants)),
            "uncaptured": _best_launch(_uncaptured_steps(of, model, constants)),
        }
        constants = constants.model_copy(update=launches)
    return model.model_copy(update={"constants": rounded(constants)})


@cache
def _captured(row: Row) -> bool:
    captured = summarize_times(row, catalog().speed_model).geometry.captured
    return row.load * (row.k + 1) <= captured


def _decodes(row: Row) -> bool:
    """Whether the median ITL is that of a step of all requests: the KV cache holds them, and fewer
    than half of the steps process prompts, too."""
    prompts = row.load * row.workload.new_prompt_tokens / MEASURED_STEP
    return row.together and prompts < row.answer / row.length / 2


def _steps(
    of: Sequence[Row], model: SpeedModel, constants: StepConstants
) -> list[tuple[Terms, float]]:
    """The terms of measured steps and their seconds: decode steps within the largest CUDA graph,
    and steps of prompts of several requests beyond it that take longer than their launch."""
    steps = []
    for row in of:
        terms = terms_of(row, constants)
        if row.gpus == 1 and _decodes(row) and _captured(row):
            steps.append((terms.decode, row.step))
        if row.gpus == 1 and not row.cached and row.load * row.prompt >= 2 * MEASURED_STEP:
            seconds = terms.seconds(constants) - constants.step
            if seconds > uncaptured_seconds(0.0, terms.layers, constants.prefill_uncaptured):
                steps.append((terms.prompts, seconds))
    return steps


def _linear(
    steps: Sequence[tuple[Terms, float]], constants: StepConstants, weights: Sequence[float]
) -> tuple[StepConstants, list[float]]:
    """The constants of the kernels and of a step, and the weights of the steps for the next round:
    those that fit badly weigh less."""
    lines = [line_of(terms, seconds, to_bounds(terms, constants)) for terms, seconds in steps]
    products = list(zip(*(line.products for line in lines), strict=True))
    shares = _solved(products, weights or [1.0] * len(lines))
    errors = (sum(map(mul, line.terms, shares)) - line.goal for line in lines)
    values = {name: share * PRIOR[name][0] for name, share in zip(LINEAR, shares, strict=True)}
    return (
        constants.model_copy(update=values),
        [1 / math.sqrt(1 + (error / _NOISE) ** 2) for error in errors],
    )


@dataclass(frozen=True)
class _RowTerms:
    """The terms of a row's steps: of decode, of the first prompt, and of the other prompts (or of
    the first, if it is the only one).

    ``layers`` of the target are launched for prompts within the largest CUDA graph. ``first`` is
    the measured mean TTFT, ``others`` the share of a step of the other prompts in it.
    """

    decode: Terms
    prompt: Terms
    prompts: Terms
    layers: int
    prompt_captured: bool
    prompts_captured: bool
    first: float
    others: float

    def seconds(self, constants: StepConstants) -> float:
        """The measured seconds of a step of ``prompts``: what the modelled step of the first one
        leaves of TTFT."""
        if not self.others:
            return self.first
        busy = self.prompt.seconds(constants)
        alone = launched(busy, self.layers, self.prompt_captured, constants)
        left = self.first - alone - constants.step
        return max(left, self.first / 10) / self.others


def terms_of(row: Row, constants: StepConstants) -> _RowTerms:
    """The terms of a row, with the constants that are not fitted to them: on one GPU none is
    reduced."""
    reduce = constants.nvlink_reduce if row.gpus > 1 else 0.0
    return _terms_of(row, constants.without_async, reduce)


@cache
def _terms_of(row: Row, without_async: float, nvlink_reduce: float) -> _RowTerms:
    model = catalog().speed_model
    fixed = {"without_async": without_async, "nvlink_reduce": nvlink_reduce}
    constants = model.constants.model_copy(update=fixed)
    times = summarize_times(row, model.model_copy(update={"constants": constants}))
    workload = row.workload
    new = workload.new_prompt_tokens
    first_steps, steps, tokens = prefill_steps(row.load, new, MEASURED_STEP)
    tokens = tokens or new
    captured = times.geometry.captured
    return _RowTerms(
        decode=times.decode_terms(row.load, row.prompt + row.answer / 2),
        prompt=times.prefill_terms(new / first_steps, workload),
        prompts=times.prefill_terms(tokens, workload),
        layers=times.geometry.layers,
        prompt_captured=new <= captured,
        prompts_captured=tokens <= captured,
        first=row.first,
        others=(1 - 1 / row.load)
        * (first_steps + max(steps, first_steps))
        / 2,  # as StepTimes.prefill_seconds
    )


@dataclass(frozen=True)
class Line:
    """One row's equation: the terms of its step times their guesses, all as shares of the measured
    step. ``products`` are those of each term with the goal, and with each term up to itself."""

    terms: tuple[float, ...]
    goal: float
    products: tuple[float, ...]


def to_bounds(terms: Terms, constants: StepConstants) -> tuple[bool, ...]:
    """Which kernels wait for memory."""
    sides = (kernel.sides(constants) for kernel in terms.kernels)
    return tuple(read >= compute for read, compute in sides)


def coefficients_of(terms: Terms, bounds: tuple[bool, ...]) -> Mapping[str, float]:
    """The factor of each constant if these kernels wait for memory."""
    factors: dict[str, float] = defaultdict(float)
    for kernel, waits in zip(terms.kernels, bounds, strict=True):
        if waits:
            factors["cache" if kernel.of_cache else "weights"] += kernel.read
        else:
            factors["grouped" if kernel.grouped else "compute"] += kernel.compute
            factors["converted"] += kernel.convert
    others = ("step", "layer", "request", "logits", "drafter", "drafter_pass")
    return factors | {name: getattr(terms, name) for name in others}


@cache
def line_of(step: Terms, seconds: float, bounds: tuple[bool, ...]) -> Line:
    """The equation of a step if these kernels wait for memory; groups that leave rows out share the
    others."""
    factors = coefficients_of(step, bounds)
    terms = tuple(factors.get(name, 0.0) / seconds * PRIOR[name][0] for name in LINEAR)
    goal = 1 - step.fixed / seconds
    squares = (term * other for i, term in enumerate(terms) for other in terms[: i + 1])
    return Line(terms, goal, (*(term * goal for term in terms), *squares))


def _solved(products: Sequence[Sequence[float]], weights: Iterable[float]) -> list[float]:
    """Weighted least squares around the prior, as shares of the guesses; none is below its least
    value. ``products`` has each of those of ``Line`` of all rows."""
    size = len(LINEAR)
    precisions = [weight / _NOISE**2 for weight in weights]
    sums = iter([sum(map(mul, precisions, product)) for product in products])
    right = [next(sums) for _ in LINEAR]
    matrix = [[0.0] * size for _ in LINEAR]
    for i, name in enumerate(LINEAR):
        for j in range(i + 1):
            matrix[i][j] = matrix[j][i] = next(sums)
        matrix[i][i] += 1 / PRIOR[name][1] ** 2
        right[i] += 1 / PRIOR[name][1] ** 2
    return _positive(matrix, right)


def _least_share(name: str) -> float:
    """Nothing is faster than the data sheet; the other constants are at least a tenth of the
    guess."""
    return 1 / PRIOR[name][0] if name in _RATES else 0.1


def _positive(matrix: list[list[float]], right: list[float]) -> list[float]:
    """The solution with no unknown below its least value: those below are set to it."""
    least = [_least_share(name) for name in LINEAR]
    held: set[int] = set()
    while True:
        free = [i for i in range(len(right)) if i not in held]
        inner = [[matrix[i][j] for j in free] for i in free]
        goal = [right[i] - sum(matrix[i][j] * least[j] for j in held) for i in free]
        solution = dict(zip(free, _eliminated(inner, goal), strict=True))
        below = {i for i, value in solution.items() if value < least[i]}
        if not below:
            return [solution.get(i, least[i]) for i in range(len(right))]
        held |= below


def _eliminated(matrix: list[list[float]], right: list[float]) -> list[float]:
    """The solution of a symmetric positive definite system, by Gaussian elimination."""
    lines = [[*line, value] for line, value in zip(matrix, right, strict=True)]
    for i, line in enumerate(lines):
        for other in lines[i + 1 :]:
            factor = other[i] / line[i]
            for j in range(i, len(line)):
                other[j] -= factor * line[j]
    solution: list[float] = []
    for i in range(len(lines) - 1, -1, -1):
        solved = sum(map(mul, lines[i][i + 1 : -1], solution))
        solution.insert(0, (lines[i][-1] - solved) / lines[i][i])
    return solution


def _others(of: Sequence[Row], model: SpeedModel, constants: StepConstants) -> dict[str, float]:
    """The latency of an all-reduce, and the launch of prompts within the largest CUDA graph."""
    values = {}
    parallel = [row for row in of if row.gpus > 1 and _captured(row)]
    if parallel:
        changed = model.model_copy(update={"constants": constants})
        values["nvlink_reduce"] = max(_reduce(parallel, changed), 1e-6)
    terms = [terms_of(row, constants)
             for row in of if row.load == 1 and not row.cached]  # fmt: skip
    launches = [
        _other_side(term.first - constants.step, term.prompt.seconds(constants)) / term.layers
        for term in terms
        if term.prompt_captured
    ]
    if launches:
        values["prefill_layer"] = statistics.median(launches)
    hashing = list(_hashing(of, model, constants))
    if hashing:
        values["hashed"] = max(statistics.median(hashing), 1e-9)
    return values


def _hashing(of: Sequence[Row], model: SpeedModel, constants: StepConstants) -> Iterator[float]:
    """The seconds for a token of a prompt that is looked up in the prefix cache: what the steps of
    several prompts leave of their TTFT."""
    changed = model.model_copy(update={"constants": constants})
    for row in of:
        if row.cached and row.load > 1:
            times = summarize_times(row, changed)
            _, first = times.prefill_seconds(row.load, row.workload, MEASURED_STEP)
            yield (row.first - first) / hashed_tokens(row)


def hashed_tokens(row: Row) -> float:
    """The tokens that are looked up in the prefix cache before a prompt is processed; a mean."""
    return row.prompt * (row.load + 1) / 2 if row.cached else 0.0


def _other_side(whole: float, side: float) -> float:
    """The other side of a step's ``hypot``; at least a microsecond."""
    return math.sqrt(max(whole**2 - side**2, 1e-12))


_CANDIDATES = [5e-3 * 1.1**number for number in range(35)]


class _Uncaptured(NamedTuple):
    """A step without a CUDA graph: the kernels' seconds, the target's layers, the seconds beside
    the kernels, and the measured seconds."""

    busy: float
    layers: int
    after: float
    seconds: float


def _best_launch(measured: Iterable[_Uncaptured]) -> float:
    """The seconds of a step's launches with which these steps agree best. The guess counts as one
    of them."""
    steps, guess = list(measured), LAUNCHES["uncaptured"]

    def error(launch: float) -> float:
        shares = (
            (uncaptured_seconds(step.busy, step.layers, launch) + step.after) / step.seconds
            for step in steps
        )
        return sum(abs(math.log(ratio)) for ratio in (*shares, launch / guess))

    return min(_CANDIDATES, key=error)


def _uncaptured_steps(
    of: Sequence[Row], model: SpeedModel, constants: StepConstants
) -> Iterator[_Uncaptured]:
    """The decode steps beyond the largest CUDA graph."""
    for row in of:
        if _decodes(row) and not _captured(row):
            terms = terms_of(row, constants)
            yield _Uncaptured(terms.decode.seconds(constants), terms.layers, 0.0, row.step)


def _uncaptured_prompts(of: Sequence[Row], constants: StepConstants) -> Iterator[_Uncaptured]:
    """The steps of prompts beyond it."""
    for row in of:
        terms = terms_of(row, constants)
        if not (terms.prompts_captured or row.cached):
            busy, seconds = terms.prompts.seconds(constants), terms.seconds(constants)
            yield _Uncaptured(busy, terms.layers, constants.step, seconds)


def _reduce(of: Sequence[Row], model: SpeedModel) -> float:
    """The latency of an all-reduce: what the other terms leave of the step."""
    constants = model.constants.model_copy(update={"nvlink_reduce": 1e-9})
    without = model.model_copy(update={"constants": constants})
    left = []
    for row in of:
        times = summarize_times(row, without)
        draft = times.geometry.draft
        layers = times.geometry.layers + (draft.layers * draft.passes if draft else 0)
        seconds = row.step - times.decode_seconds(row.load, row.prompt + row.answer / 2)
        left.append(seconds / (2 * layers))
    return statistics.median(left)


def rounded(constants: StepConstants) -> StepConstants:
    """The constants with the three digits that speed_model.yaml has."""
    digits = {name: float(f"{value:.2e}") for name, value in constants.model_dump().items()}
    return constants.model_copy(update=digits)
