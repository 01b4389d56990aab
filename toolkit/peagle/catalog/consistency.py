"""What measured results must agree with: the GPU, and the target's drafters.

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


def wrong_engine(document: Mapping[str, Any]) -> Iterator[Problem]:
    """An ``engine.name`` other than vLLM; files without a name are of vLLM."""
    engine = document.get("engine")
    name = engine.get("name", ENGINE) if isinstance(engine, dict) else ENGINE
    if name != ENGINE:
        message = f"is {json.dumps(name)[:60]}, and plans are for {ENGINE}"
        yield "engine.name", message, "remove the file"


def wrong_rows(run: SpeedRun, document: Mapping[str, Any]) -> Iterator[Problem]:
    """What no engine can have measured."""
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


def _at(row: Speed) -> tuple[Any, ...]:
    return (row.drafter, row.k, row.concurrency, row.prompt_tokens, row.output_tokens)
