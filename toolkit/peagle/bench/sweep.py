"""Measures several settings one after the other; keeps each row, and continues where it ended.

One engine serves all loads of a setting. What is measured goes to a result file after each row; the
same command reads it and measures only what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from peagle.bench.models import BenchLoad, BenchResult, BenchRow, BenchSetting
from peagle.bench.prices import Budget
from peagle.bench.results import read_result
from peagle.bench.saturation import with_saturation
from peagle.errors import EngineError, UserError
from peagle.store import write_json
from peagle.text import format_duration

_NONE = "none"
"""The word for no speculation, in place of K."""

LARGEST_K = 64
MOST_ROWS = 1_000
"""Settings times loads of one sweep."""

_TOKENS_PER_SECOND = 20.0
"""Of one request, for the time of a row before any is measured: slow, so that rather too long."""

Measure = Callable[[BenchLoad, Callable[[int, int], object]], BenchRow]
"""Measures one load of the engine that serves; calls back with how many requests of how many have
ended."""

Open = Callable[[BenchSetting], AbstractContextManager[Measure]]
"""Starts what serves a setting, and ends it."""


def parse_settings(text: str) -> tuple[int, ...]:
    """The K of each setting of ``k=none,1,3``; 0 is no speculation. Raises UserError."""
    name, _, values = text.partition("=")
    found = []
    for value in values.split(","):
        word = value.strip()
        is_k = word.isdecimal() and word.isascii() and len(word) < 4 and 1 <= int(word) <= LARGEST_K
        if name.strip() != "k" or not (is_k or word == _NONE):
            raise UserError(
                f"--sweep {text[:80]}: {word[:40]!r} is not a value of k",
                f"write k=none,1,3 with K from 1 to {LARGEST_K}",
                "invalid-sweep",
            )
        found.append(0 if word == _NONE else int(word))
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True)
class SweepProgress:
    """Where a sweep is. ``seconds_left`` is an estimate, ``None`` before there is one; ``share`` is
    of the current row."""

    done: int
    total: int
    setting: str
    load: str
    share: float = 0.0
    seconds_left: float | None = None

    @property
    def text(self) -> str:
        """``row 3 of 12: p-eagle K=3, short-prompt x 8, 40 %, about 5m left``."""
        left = self.seconds_left
        about = f", about {format_duration(left)} left" if left is not None else ""
        percent = f", {self.share:.0%}" if self.share else ""
        now = min(self.done + 1, self.total)
        return f"row {now} of {self.total}: {self.setting}, {self.load}{percent}{about}"


@dataclass(frozen=True)
class Sweep:
    """What is measured: each setting with each load, in this order."""

    settings: tuple[BenchSetting, ...]
    loads: tuple[BenchLoad, ...]

    def __post_init__(self) -> None:
        if len(self.settings) * len(self.loads) > MOST_ROWS:
            raise UserError(
                f"the sweep has {len(self.settings) * len(self.loads):,} rows, and at most "
                f"{MOST_ROWS:,} are measured together",
                "measure fewer settings, workloads or loads",
                "invalid-sweep",
            )

    @property
    def total(self) -> int:
        return len(self.settings) * len(self.loads)

    def seconds(self, rows: Iterable[BenchRow], start_seconds: float) -> tuple[float, float]:
        """How long the missing starts and rows take, about; ``start_seconds`` is of one start."""
        estimate = _Estimate(start_seconds)
        rows = list(rows)
        for row in rows:
            estimate.measured(row.load, sum(one.seconds for one in row.repetitions))
        waiting = self.missing(rows)
        left = sum(estimate.of(load) for loads in waiting.values() for load in loads)
        return len(waiting) * start_seconds, left

    def missing(self, rows: Iterable[BenchRow]) -> dict[BenchSetting, tuple[BenchLoad, ...]]:
        """The loads of each setting that have no complete row."""
        done = {_key(row.setting, row.load) for row in rows if not row.incomplete}
        found = {
            setting: tuple(load for load in self.loads if _key(setting, load) not in done)
            for setting in self.settings
        }
        return {setting: loads for setting, loads in found.items() if loads}

    def rows_of(self, rows: Iterable[BenchRow]) -> tuple[BenchRow, ...]:
        """The rows of this sweep among ``rows``, in its order."""
        known = {_key(row.setting, row.load): row for row in rows}
        keys = (_key(setting, load) for setting in self.settings for load in self.loads)
        return tuple(known[key] for key in keys if key in known)

    def run(
        self,
        file: ResultFile,
        opened: Open,
        observe: Callable[[SweepProgress], object] = lambda progress: None,
        budget: Budget | None = None,
        start_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> BenchResult:
        """Measure what ``file`` does not hold, and return all rows of this sweep.

        ``start_seconds`` is how long a start takes at most, for the ``budget``, before one is
        measured. Whatever ends the sweep early, ``file`` has every finished row. Raises EngineError
        for a load that ends early, and UserError when the budget does not allow the next row.
        """
        estimate = _Estimate(start_seconds)
        budget = budget or Budget(None, None)
        for row in file.result.rows:
            estimate.measured(row.load, sum(one.seconds for one in row.repetitions))
        waiting = self.missing(file.result.rows)

        def show(setting: BenchSetting, load: BenchLoad, ended: int = 0, total: int = 0) -> None:
            share = ended / total if total else 0.0
            observe(self._progress(waiting, estimate, setting, load, share))

        for setting, loads in list(waiting.items()):
            first = f"{setting.text} with {load_text(loads[0])}"
            budget.require(estimate.start, estimate.of(loads[0]), first)
            show(setting, loads[0])
            begun = clock()
            with opened(setting) as measure:
                estimate.started(clock() - begun)
                budget.started(clock() - begun)
                for number, load in enumerate(loads):
                    what = f"{setting.text} with {load_text(load)}"
                    budget.require(0.0, estimate.of(load), what)
                    show(setting, load)
                    begun = clock()
                    row = measure(load, partial(show, setting, load))
                    estimate.measured(load, clock() - begun)
                    file.add(replace(row, setting=setting), budget.spent)
                    if row.incomplete:
                        raise EngineError(f"{what}: {row.incomplete}", code="load-failed")
                    waiting[setting] = loads[number + 1 :]
            del waiting[setting]
        rows = with_saturation(self.rows_of(file.result.rows))
        return replace(file.result, rows=rows)

    def _progress(
        self,
        waiting: dict[BenchSetting, tuple[BenchLoad, ...]],
        estimate: _Estimate,
        setting: BenchSetting,
        load: BenchLoad,
        share: float = 0.0,
    ) -> SweepProgress:
        left = [one for loads in waiting.values() for one in loads]
        starts = sum(1 for one in waiting if one != setting)
        return SweepProgress(
            done=self.total - len(left),
            total=self.total,
            setting=setting.text,
            load=load_text(load),
            share=share,
            seconds_left=estimate.left(starts, left, share * estimate.of(load)),
        )


def load_text(load: BenchLoad) -> str:
    """``short-prompt x 8``."""
    return f"{load.workload.name} x {load.concurrency}"


class _Estimate:
    """How long starts and rows take: as long as those that were measured."""

    def __init__(self, start_seconds: float) -> None:
        self.start = start_seconds
        self._rows: dict[tuple[str, int], tuple[float, float]] = {}

    def started(self, seconds: float) -> None:
        self.start = seconds

    def measured(self, load: BenchLoad, seconds: float) -> None:
        self._rows[load.workload.name, load.concurrency] = (_slow(load), seconds)

    def of(self, load: BenchLoad) -> float:
        """Seconds of a row with this load: as measured, else in proportion to a similar one that
        was measured, else of slow answers."""
        exact = self._rows.get((load.workload.name, load.concurrency))
        if exact is not None:
            return exact[1]
        near = sorted(
            (name != load.workload.name, abs(number - load.concurrency), guess, seconds)
            for (name, number), (guess, seconds) in self._rows.items()
        )
        if near:
            return near[0][3] * _slow(load) / near[0][2]
        return _slow(load)

    def left(self, starts: int, loads: Sequence[BenchLoad], done: float) -> float | None:
        if not self._rows:
            return None
        return max(0.0, starts * self.start + sum(map(self.of, loads)) - done)


def _slow(load: BenchLoad) -> float:
    """Seconds of a row with slow answers."""
    rounds = 1 + load.repetitions * -(-load.requests // load.concurrency)
    return rounds * load.workload.size.output_tokens / _TOKENS_PER_SECOND


class ResultFile:
    """A result on disk, which holds every finished row at any time. Prompts stay out of it."""

    def __init__(self, path: Path, result: BenchResult) -> None:
        self.path, self.result = path, result

    @classmethod
    def continued(cls, path: Path, fresh: BenchResult, again: bool = False) -> ResultFile:
        """The file at ``path`` with the rows that it has, or without any for ``again``.

        Raises UserError for a damaged file and for rows of another pair, engine or GPU.
        """
        if again or not path.exists():
            return cls(path, fresh)
        found, _ = read_result(path)
        for name in ("pair", "vllm", "gpu", "tensor_parallel_size", "where", "instance_type"):
            old, new = getattr(found.server, name), getattr(fresh.server, name)
            if old != new:
                raise UserError(
                    f"{path} has rows of another {name.replace('_', ' ')}: {old}, not {new}",
                    "choose another file with -o, or begin again with --again",
                    "other-result",
                )
        return cls(
            path,
            replace(fresh, started=found.started, rows=found.rows, spent_usd=found.spent_usd),
        )

    def spend(self, usd: float) -> None:
        """Keep what the sweep has cost in all, so that a sweep that continues counts it."""
        if usd:
            self.result = replace(self.result, spent_usd=round(usd, 4))
            write_json(self.path, self.result.document())

    def add(self, row: BenchRow, spent_usd: float = 0.0) -> None:
        """Keep the row, in place of one with the same setting and load, and what has been spent."""
        row = replace(row, load=_without_prompts(row.load))
        others = [one for one in self.result.rows if _key_of(one) != _key_of(row)]
        spent = round(spent_usd, 4) if spent_usd else self.result.spent_usd
        self.result = replace(self.result, rows=(*others, row), spent_usd=spent)
        write_json(self.path, self.result.document())


def _without_prompts(load: BenchLoad) -> BenchLoad:
    return replace(load, workload=replace(load.workload, prompts=()))


def _key_of(row: BenchRow) -> tuple[object, ...]:
    return _key(row.setting, row.load)


def _key(setting: BenchSetting, load: BenchLoad) -> tuple[object, ...]:
    """What makes two rows the same: whether answers had their full length does not."""
    workload = load.workload
    return (
        setting,
        workload.name,
        workload.size,
        workload.digest,
        load.concurrency,
        load.repetitions,
    )
