"""What measured results must agree with: their own rows, the GPU, and the target's drafters.

Each rule yields (key, message, fix).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from peagle.catalog.schema import NO_GPU, Drafter, Speed, SpeedRun

Problem = tuple[str, str, str]

ENGINE = "vllm"
"""The only engine whose results can be evidence."""

_MEASURE = "measure again, or correct the row"
_TIMES = ("ttft_seconds", "itl_seconds", "tpot_seconds")
_FASTER = 1.5
"""By how much tokens/s may exceed the concurrency over TPOT: answers of unequal length have unequal
weights in the two."""

_ROUNDED = 1e-3
"""Relative error of rounded numbers."""


def wrong_engine(document: Mapping[str, Any]) -> Iterator[Problem]:
    """An ``engine.name`` other than vLLM; files without a name are of vLLM."""
    engine = document.get("engine")
    name = engine.get("name", ENGINE) if isinstance(engine, dict) else ENGINE
    if name != ENGINE:
        message = f"is {json.dumps(name)[:60]}, and plans are for {ENGINE}"
        yield "engine.name", message, "remove the file"


def wrong_rows(run: SpeedRun, document: Mapping[str, Any]) -> Iterator[Problem]:
    """What no engine can have measured, and speeds that are not those of the file's raw rows."""
    yield from _wrong_device(run, document.get("device"))
    if not run.speeds:
        yield "speeds", "is empty", "remove the file, or add the measured speeds"
    seen: Counter[tuple[Any, ...]] = Counter()
    for number, row in enumerate(run.speeds):
        key = f"speeds[{number}]"
        yield from _impossible(key, row)
        seen[_at(row)] += 1
        if seen[_at(row)] > 1:
            message = f"duplicate row: k {row.k} with concurrency {row.concurrency}"
            yield key, message, "keep one of them"
    yield from _unlike_raw(run.speeds, document.get("raw"))


def above_trained(
    used: Iterable[tuple[str, str | None, int]], drafters: Sequence[Drafter]
) -> Iterator[Problem]:
    """Drafters with a K above the trained one; ``used`` are a key, a drafter's name and a K."""
    trained = {name: d.k_trained for d in drafters for name in (d.name, d.weights) if name}
    for key, name, k in used:
        most = trained.get(name) if name else None
        if most and k > most:
            yield f"{key}.k", f"{k} exceeds the trained K of {name}, {most}", f"at most {most}"


def rows_of(run: SpeedRun) -> Iterator[tuple[str, str | None, int]]:
    """The key, drafter and K of each row."""
    for number, row in enumerate(run.speeds):
        yield f"speeds[{number}]", row.drafter, row.k


def _wrong_device(run: SpeedRun, device: object) -> Iterator[Problem]:
    if run.gpu == NO_GPU or not isinstance(device, str):
        return
    words = re.findall(r"\w+", device.upper())
    # SE is the catalogue's abbreviation of Server Edition.
    lacking = [w for w in re.findall(r"\w+", run.gpu.upper()) if w not in words and w != "SE"]
    if lacking:
        message = f"{run.gpu} is not the device, {device[:60]}"
        yield "gpu", message, "name the GPU that was measured in both"


def _impossible(key: str, row: Speed) -> Iterator[Problem]:
    if (row.drafter is None) != (row.k == 0):
        fix = "the target alone has drafter null and k 0; with a drafter, k is at least 1"
        yield key, f"drafter {json.dumps(row.drafter)} with k {row.k}", fix
    if row.acceptance_length and row.acceptance_length > row.k + 1:
        fix = "an engine accepts at most K drafts and adds a token of its own"
        yield key, f"acceptance_length {row.acceptance_length} with k {row.k}", fix
    speed = row.output_tokens_per_second
    if not (row.low or speed) <= speed <= (row.high or speed):
        message = f"{speed} is not between low {row.low} and high {row.high}"
        yield f"{key}.output_tokens_per_second", message, "correct the row"
    for name in _TIMES:
        seconds = getattr(row, name)
        if seconds and not seconds.p50 <= seconds.p90 <= seconds.p99:
            yield f"{key}.{name}", "p50, p90 and p99 do not ascend", "correct the row"
    if row.tpot_seconds and row.tpot_seconds.mean:
        # TPOT is per token after the first output, which may be half of a short answer.
        tokens = max(2, row.output_tokens or 2)
        tpot = row.tpot_seconds.mean
        about = row.concurrency / tpot
        if speed > _FASTER * tokens / (tokens - 1) * about:
            message = f"{speed:,.6g} is impossible with concurrency {row.concurrency:,} and a TPOT"
            message += f" of {tpot:g} s, which is about {about:,.0f}"
            yield f"{key}.output_tokens_per_second", message, _MEASURE


def _unlike_raw(speeds: Sequence[Speed], raw: object) -> Iterator[Problem]:
    """Speeds without a raw row, or outside what its repetitions have. Files may have no raw rows,
    and raw rows without a speed: those of other settings."""
    if raw is None or raw == []:
        return
    if not isinstance(raw, list):
        yield "raw", f"is {json.dumps(raw)[:60]}: expected a list", _MEASURE
        return
    tries: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    names = ("drafter", "k", "concurrency", "prompt_tokens", "output_tokens")
    for one in raw:
        values = tuple(one.get(name) for name in names) if isinstance(one, dict) else ([],)
        several = one.get("tries") if isinstance(one, dict) else None
        if isinstance(several, list) and not any(isinstance(v, list | dict) for v in values):
            found = tries.setdefault(values, [])
            found += [single for single in several if isinstance(single, dict)]
    for number, row in enumerate(speeds):
        key = f"speeds[{number}]"
        if _at(row) not in tries:
            yield key, "has no row with the same setting and load in raw", _MEASURE
            continue
        for name, value, found_of in _compared(row, tries[_at(row)]):
            low, high = min(found_of), max(found_of)
            if not low * (1 - _ROUNDED) - 1e-6 <= value <= high * (1 + _ROUNDED) + 1e-6:
                message = f"{value:,.6g} is not within its raw row, {low:,.6g} to {high:,.6g}"
                yield f"{key}.{name}", message, _MEASURE


def _compared(
    row: Speed, tries: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, float, list[float]]]:
    """The values of the row that its repetitions have too: name, value, and theirs."""
    speeds = _numbers(one.get("output_tokens_per_second") for one in tries)
    if speeds:
        yield "output_tokens_per_second", row.output_tokens_per_second, speeds
        if row.low is not None:
            yield "low", row.low, [min(speeds)]
        if row.high is not None:
            yield "high", row.high, [max(speeds)]
    lengths = _numbers(one.get("acceptance_length") for one in tries)
    if lengths and row.acceptance_length is not None:
        yield "acceptance_length", row.acceptance_length, lengths
    for name in _TIMES:
        seconds = getattr(row, name)
        means = _numbers(v.get("mean") for one in tries if isinstance(v := one.get(name), dict))
        if seconds and means:
            yield f"{name}.mean", seconds.mean, means


def _numbers(values: Iterable[object]) -> list[float]:
    return [float(v) for v in values if isinstance(v, int | float) and abs(v) < 1e300]


def _at(row: Speed) -> tuple[Any, ...]:
    return (row.drafter, row.k, row.concurrency, row.prompt_tokens, row.output_tokens)
