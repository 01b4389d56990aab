"""How measured rows of a target correct the estimate of a case near them.

The factor is the weighted geometric mean of measured over modelled time of the rows, with a ratio
of 1 as one row more. A row weighs less the further its load, K and request size are, and on other
GPUs; for a drafter without rows those of the target alone count, with little weight.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

from peagle.catalog.schema import SpeedRun
from peagle.catalog.tables import SpeedModel
from peagle.speed.geometry import Geometry
from peagle.speed.models import TARGET_ALONE, Workload, is_on
from peagle.speed.step import StepTimes, closed_load

T = TypeVar("T")

MEASURED_STEP = 8192
"""max-num-batched-tokens of the measured engines."""

_PRIOR = 0.5
"""Weight of a ratio of 1."""

_OTHER_GPU, _ALONE = 0.3, 0.1
"""Weights of rows of another GPU, and of the target alone for a drafter."""

_LOAD, _K, _PROMPT, _ANSWER = math.log(2.5), 2.5, math.log(5), math.log(12)
"""Distances at which a weight falls to 1/e: held-out settings and request sizes have the smallest
errors around these, and hardly larger ones at half and twice of them."""


class Correction(NamedTuple):
    """The factor on the modelled time, half the width of the range as a share, and the runs."""

    factor: float
    width: float
    runs: tuple[SpeedRun, ...]


class _Ratio(NamedTuple):
    """Measured over modelled time of one row; logarithms of that, of its load and tokens."""

    k: int
    log_load: float
    log_prompt: float
    log_answer: float
    log_ratio: float


def correct(
    times: StepTimes,
    workload: Workload,
    load: float,
    runs: Sequence[SpeedRun],
    names: Collection[str | None],
) -> Correction:
    """The correction of this engine's estimate by the target's runs, on any GPU."""
    ranges, geometry, model = times.model.ranges, times.geometry, times.model
    trusted, run_rows = 1.0, _rows(runs, geometry, frozenset(names), model)
    if geometry.k and not run_rows:
        trusted, run_rows = _ALONE, _rows(runs, geometry.with_k(0), TARGET_ALONE, model)
    total, logs, same = _PRIOR, 0.0, False
    for run, rows in run_rows:
        here = is_on(run, times.gpu.gpu, geometry.tensor_parallel_size)
        same |= here
        weight_of_run = trusted * (1 if here else _OTHER_GPU)
        weight, log = _weighed(_Identity(rows), geometry.k, load, workload)
        total, logs = total + weight_of_run * weight, logs + weight_of_run * log
    is_fitted = any(fitted.gpu == times.gpu.gpu for fitted in model.evidence)
    width = ranges.both if same else ranges.one if run_rows or is_fitted else ranges.none
    return Correction(math.exp(logs / total), width, tuple(run for run, _ in run_rows))


class _Identity(Generic[T]):
    """A key of a cache for a value that equals only itself: hashing a run with all its rows takes
    longer than using it."""

    def __init__(self, value: T) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def _rows(
    runs: Sequence[SpeedRun], geometry: Geometry, names: frozenset[str | None], model: SpeedModel
) -> list[tuple[SpeedRun, tuple[_Ratio, ...]]]:
    """The runs with rows of these drafters, and the ratios of those."""
    pair = _of_any_k(geometry)  # all K and numbers of GPUs share the ratios
    run_rows = ((run, _ratios(_Identity(run), pair, names, _Identity(model))) for run in runs)
    return [(run, rows) for run, rows in run_rows if rows]


@lru_cache(maxsize=4096)
def _weighed(
    rows: _Identity[tuple[_Ratio, ...]], k: int, load: float, workload: Workload
) -> tuple[float, float]:
    """The sums of the weights and of the weighted logarithms of a run's rows at this setting, which
    are the same for engines on all GPUs."""
    log_load = math.log(load)
    log_prompt, log_answer = math.log(workload.prompt_tokens), math.log(workload.output_tokens)
    total = logs = 0.0
    for row in rows.value:
        distance = (
            abs(row.log_load - log_load) / _LOAD
            + abs(row.k - k) / _K
            + abs(row.log_prompt - log_prompt) / _PROMPT
            + abs(row.log_answer - log_answer) / _ANSWER
        )
        weight = math.exp(-distance)
        total, logs = total + weight, logs + weight * row.log_ratio
    return total, logs


@lru_cache(maxsize=256)
def _of_any_k(geometry: Geometry) -> Geometry:
    """The pair on one GPU, of which ``with_k`` makes those with a K."""
    draft = geometry.draft and geometry.draft._replace(passes=1)
    return geometry._replace(k=0, draft=draft, tensor_parallel_size=1)


@lru_cache(maxsize=256)
def _ratios(
    run: _Identity[SpeedRun],
    pair: Geometry,
    names: frozenset[str | None],
    model: _Identity[SpeedModel],
) -> tuple[_Ratio, ...]:
    return tuple(_ratios_of(run.value, pair, names, model.value))


def _ratios_of(
    run: SpeedRun, pair: Geometry, names: Collection[str | None], model: SpeedModel
) -> Iterable[_Ratio]:
    gpu = model.gpu(run.gpu)
    pair = pair._replace(tensor_parallel_size=run.tensor_parallel_size)
    for row in run.speeds if gpu else ():
        lacks = not row.prompt_tokens or not row.output_tokens or row.drafter not in names
        if gpu is None or lacks or (row.k and not row.acceptance_length):
            continue
        size = Workload(row.prompt_tokens or 1, row.output_tokens or 1)
        times = StepTimes(pair.with_k(row.k), gpu, model)
        load, length = row.concurrency, row.acceptance_length or 1.0
        timing = closed_load(times, size, load, math.inf, MEASURED_STEP, length)
        time = load * size.output_tokens / row.output_tokens_per_second
        yield _Ratio(
            row.k,
            math.log(load),
            math.log(size.prompt_tokens),
            math.log(size.output_tokens),
            math.log(time / timing.total),
        )
