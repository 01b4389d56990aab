"""Fits the constants of the performance model to measured speeds, by linear least squares.

A decode step is a sum of terms with one constant each (``peagle.speed.step``), so the constants
follow from the median ITL of the rows by least squares of the relative error, with every constant
held near a physical guess (``PRIOR``) where the rows do not determine it, and outliers weighing
less. Times to the first token determine the constants of prefill, rows beyond the largest CUDA
graph the launch of their kernels.

vLLM draws dummy weights, those of norms included, from -0.001 to 0.001. A router's logit is then
0.00002 from the token and 0.0006 from the router's bias, which GPT-OSS has and other targets lack:
all its tokens choose nearly the same experts, at any temperature. On an H200 a step with 32
requests takes 0.7 ms longer than with one, where reading the other experts takes 1.8 ms. Such rows
get a request exponent of their own by pair (``alike``), which estimates of real requests do not
use; rows with ``"biases": "zero"`` do without (``benchmarks.gpu.probe.remove_biases``).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.speed_rows import Row, times_of
from peagle.catalog.speed_model import SpeedModel, StepConstants
from peagle.speed.correction import MEASURED_STEP

LINEAR = ("step", "layer", "request", "weights", "cache", "compute", "logits", "drafter",
          "drafter_layer")  # fmt: skip
PRIOR = {
    "step": (1.0e-3, 0.7),
    "layer": (4.0e-5, 0.7),
    "request": (1.0e-5, 1.0),
    "weights": (1.3, 0.25),
    "cache": (1.5, 0.5),
    "compute": (2.2, 0.4),
    "logits": (5.0, 0.5),
    "drafter": (5.0e-4, 0.7),
    "drafter_layer": (1.0e-4, 0.7),
}
"""A guess of each constant and its uncertainty as a share of it."""

_NOISE = 0.06
"""The relative error that a row is expected to have; larger ones weigh less."""

COARSE, FINE = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.999), 0.05
"""Exponents to try, and the step to the two around the best of them."""


@dataclass(frozen=True)
class Exponents:
    """How alike requests and their tokens are; ``alike``: of random weights, by pair."""

    requests: float
    tokens: float
    alike: Mapping[str, float]

    def model(self, row: Row, model: SpeedModel) -> SpeedModel:
        """``model`` with the exponents of this row."""
        requests = self.alike[row.pair] if row.alike else self.requests
        return model.model_copy(
            update={"request_exponent": requests, "token_exponent": self.tokens}
        )

    def value(self, name: str) -> float:
        """The exponent of requests, of tokens, or of a pair's alike requests."""
        return {"requests": self.requests, "tokens": self.tokens, **self.alike}[name]

    def with_one(self, name: str, value: float) -> Exponents:
        """With another value of the exponent ``name``."""
        if name == "requests":
            return replace(self, requests=value)
        if name == "tokens":
            return replace(self, tokens=value)
        return replace(self, alike={**self.alike, name: value})


def fitted(of: Sequence[Row], model: SpeedModel) -> SpeedModel:
    """``model`` with the constants that fit these rows best."""
    pairs = {(row.pair, row.alike) for row in of}
    alike = {pair: model.request_exponent for pair, is_alike in sorted(pairs) if is_alike}
    found = Exponents(model.request_exponent, model.token_exponent, alike)
    captured = [row for row in of if row.gpus == 1 and _captured(row, model)]
    names = (*alike, "tokens", *(["requests"] if len(alike) < len(pairs) else []))
    for around in (False, True):
        for name in names:
            found = _better(captured, model, found, name, around)
    constants, _ = _linear(captured, model, found)
    fixed = model.constants.model_copy(update=dict(zip(LINEAR, constants, strict=True)))
    exponents = {
        "request_exponent": found.requests,
        "token_exponent": found.tokens,
        "alike": dict(found.alike),
    }
    changed = model.model_copy(update={"constants": fixed, **exponents})
    fixed = fixed.model_copy(update=_launches(of, changed))
    return changed.model_copy(update={"constants": rounded(fixed)})


def _better(
    of: Sequence[Row], model: SpeedModel, found: Exponents, name: str, around: bool
) -> Exponents:
    """With the best value of one exponent; ``around``: of those next to the present one."""
    values: Iterable[float] = COARSE
    if around:
        now = found.value(name)
        values = {now, max(now - FINE, 0.05), min(now + FINE, 0.999)}
    options = [found.with_one(name, round(value, 3)) for value in sorted(values)]
    return min(options, key=lambda each: _linear(of, model, each, rounds=2)[1])


def _captured(row: Row, model: SpeedModel) -> bool:
    return row.load * (row.k + 1) <= times_of(row, model).geometry.captured


def _linear(
    of: Sequence[Row], model: SpeedModel, exponents: Exponents, rounds: int = 6
) -> tuple[list[float], float]:
    """The constants of the decode step in the order of LINEAR, and the error that remains."""
    lines = []
    for row in of:
        times = times_of(row, exponents.model(row, model))
        terms = times.decode_terms(row.load, row.prompt + row.answer / 2)
        lines.append(
            ([getattr(terms, name) / row.step for name in LINEAR], 1 - terms.fixed / row.step)
        )
    weights = [1.0] * len(lines)
    constants: list[float] = []
    errors: list[float] = []
    for _ in range(rounds):
        constants = _solved(lines, weights)
        errors = [sum(map(_product, line, constants)) - goal for line, goal in lines]
        weights = [1 / math.sqrt(1 + (error / _NOISE) ** 2) for error in errors]
    robust = sum(math.sqrt(1 + (error / _NOISE) ** 2) - 1 for error in errors)
    held = sum(
        ((one / PRIOR[name][0] - 1) / PRIOR[name][1]) ** 2 / 2
        for name, one in zip(LINEAR, constants, strict=True)
    )
    return constants, robust + held


def _product(one: float, other: float) -> float:
    return one * other


def _solved(lines: Iterable[tuple[list[float], float]], weights: Iterable[float]) -> list[float]:
    """Weighted least squares around the prior; none is below its least value."""
    size = len(LINEAR)
    guess = [PRIOR[name][0] for name in LINEAR]
    matrix = [[0.0] * size for _ in LINEAR]
    right = [0.0] * size
    for (line, goal), weight in zip(lines, weights, strict=True):
        scaled = [value * unit for value, unit in zip(line, guess, strict=True)]
        precision = weight / _NOISE**2
        for i, value in enumerate(scaled):
            right[i] += precision * value * goal
            line_of = matrix[i]
            for j in range(i + 1):
                line_of[j] += precision * value * scaled[j]
    for i, name in enumerate(LINEAR):
        for j in range(i):
            matrix[j][i] = matrix[i][j]
        matrix[i][i] += 1 / PRIOR[name][1] ** 2
        right[i] += 1 / PRIOR[name][1] ** 2
    shares = _positive(matrix, right)
    return [share * unit for share, unit in zip(shares, guess, strict=True)]


def _least_share(name: str) -> float:
    """Nothing is faster than the data sheet; the other constants are at least a tenth of the
    guess."""
    return 1 / PRIOR[name][0] if name in ("weights", "cache", "compute") else 0.1


def _positive(matrix: list[list[float]], right: list[float]) -> list[float]:
    """The solution with no unknown below its least value: those below are set to it."""
    least = [_least_share(name) for name in LINEAR]
    held: set[int] = set()
    while True:
        free = [i for i in range(len(right)) if i not in held]
        inner = [[matrix[i][j] for j in free] for i in free]
        goal = [right[i] - sum(matrix[i][j] * least[j] for j in held) for i in free]
        found = dict(zip(free, _eliminated(inner, goal), strict=True))
        below = {i for i, value in found.items() if value < least[i]}
        if not below:
            return [found.get(i, least[i]) for i in range(len(right))]
        held |= below


def _eliminated(matrix: list[list[float]], right: list[float]) -> list[float]:
    """The solution of a symmetric positive definite system, by Gaussian elimination."""
    lines = [[*line, value] for line, value in zip(matrix, right, strict=True)]
    for i, line in enumerate(lines):
        for other in lines[i + 1 :]:
            factor = other[i] / line[i]
            for j in range(i, len(line)):
                other[j] -= factor * line[j]
    found: list[float] = []
    for i in range(len(lines) - 1, -1, -1):
        known = sum(map(_product, lines[i][i + 1 : -1], found))
        found.insert(0, (lines[i][-1] - known) / lines[i][i])
    return found


def _launches(of: Sequence[Row], model: SpeedModel) -> dict[str, float]:
    """The constants of prefill and of batches without a CUDA graph."""
    found = {}
    beyond = [row for row in of if not _captured(row, model)]
    layers = _layers(beyond, model)
    if layers:
        found["uncaptured_layer"] = statistics.median(
            row.step / count for row, count in zip(beyond, layers, strict=True)
        )
    constants = model.constants.model_copy(update=found)
    long = [row for row in of if row.load * row.prompt >= 2 * MEASURED_STEP]
    if long:
        found["prefill"] = _best_prefill(long, model.model_copy(update={"constants": constants}))
    parallel = [row for row in of if row.gpus > 1 and _captured(row, model)]
    if parallel:
        found["nvlink_reduce"] = max(_reduce(parallel, model), 1e-6)
    short = [row for row in of if row.load == 1 and row.prompt <= 256]
    if short:
        unlaunched = constants.model_copy(update={**found, "prefill_layer": 1e-9})
        without = model.model_copy(update={"constants": unlaunched})
        found["prefill_layer"] = statistics.median(
            (row.first - times.prefill_step_seconds(row.prompt, row.prompt)) / times.geometry.layers
            for row, times in ((row, times_of(row, without)) for row in short)
        )
    return found


def _reduce(of: Sequence[Row], model: SpeedModel) -> float:
    """The latency of an all-reduce: what the other terms leave of the step."""
    constants = model.constants.model_copy(update={"nvlink_reduce": 1e-9})
    without = model.model_copy(update={"constants": constants})
    left = []
    for row in of:
        times = times_of(row, without.as_measured(row.pair))
        draft = times.geometry.draft
        layers = times.geometry.layers + (draft.layers * draft.passes if draft else 0)
        seconds = row.step - times.decode_seconds(row.load, row.prompt + row.answer / 2)
        left.append(seconds / (2 * layers))
    return statistics.median(left)


def _layers(of: Sequence[Row], model: SpeedModel) -> list[int]:
    geometries = [times_of(row, model).geometry for row in of]
    return [one.layers + (one.draft.layers if one.draft else 0) for one in geometries]


def _best_prefill(of: Sequence[Row], model: SpeedModel) -> float:
    """The factor on the peak with which times to the first token agree best."""

    def error(factor: float) -> float:
        constants = model.constants.model_copy(update={"prefill": factor})
        tried = model.model_copy(update={"constants": constants})
        errors = (
            times_of(row, tried).prefill_seconds(row.load, row.prompt, MEASURED_STEP)[1] / row.first
            for row in of
        )
        return statistics.median(abs(math.log(one)) for one in errors)

    return _least(error, [1 + number / 50 for number in range(200)])


def _least(error: Callable[[float], float], options: Iterable[float]) -> float:
    return min(options, key=error)


def rounded(constants: StepConstants) -> StepConstants:
    """The constants with the three digits that speed_model.yaml has."""
    digits = {name: float(f"{value:.2e}") for name, value in constants.model_dump().items()}
    return constants.model_copy(update=digits)
