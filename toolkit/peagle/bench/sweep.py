"""Measure several settings of a pair, row by row, within a limit of what it may cost.

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

from peagle.bench.acceptance import rates_of, read_acceptance, with_imposed_acceptance
from peagle.bench.evidence import read_result
from peagle.bench.measure import Measure, with_saturation
from peagle.bench.result import BenchLoad, BenchResult, BenchRow, BenchSetting
from peagle.bench.workloads import make_loads
from peagle.errors import EngineError, OptionMissing, UserError
from peagle.planning.plan import Plan
from peagle.store import write_json
from peagle.text import format_duration, format_usd

_NONE = "none"
"""The word for no speculation, in place of K."""

LARGEST_K = 64
MOST_ROWS = 1_000
"""Settings times loads of one sweep."""

_TOKENS_PER_SECOND = 20.0
"""Of one request, for the time of a row before any is measured: slow, so that rather too long."""

Open = Callable[[BenchSetting], AbstractContextManager[Measure]]
"""Starts what serves a setting, and ends it."""

PlanOf = Callable[[BenchSetting], Plan]


class BudgetExceeded(UserError, code="budget-too-small"):
    """The next row would cost more than the user allows."""


@dataclass
class Budget:
    """What a sweep may cost: ``usd`` in all, at ``usd_per_hour`` from its start. While an update of
    an endpoint runs, the instances of both revisions cost: ``start_factor`` 2. ``before`` are the
    USD of earlier runs, ``end_seconds`` the start that must remain possible at the end."""

    usd: float | None
    usd_per_hour: float | None
    start_factor: float = 1.0
    clock: Callable[[], float] = time.monotonic
    before: float = 0.0
    end_seconds: float = 0.0

    def __post_init__(self) -> None:
        self._begun, self._more = self.clock(), 0.0

    @property
    def spent(self) -> float:
        """USD since the start, and of earlier runs."""
        seconds = self.clock() - self._begun + self._more
        return self.before + seconds / 3600 * (self.usd_per_hour or 0.0)

    def cost(self, start_seconds: float, row_seconds: float) -> float:
        """USD of a start and of rows."""
        seconds = self.start_factor * start_seconds + row_seconds
        return seconds / 3600 * (self.usd_per_hour or 0.0)

    def started(self, seconds: float) -> None:
        """A start took so long."""
        self._more += (self.start_factor - 1) * seconds

    def require(self, start_seconds: float, row_seconds: float, what: str) -> None:
        """Raise BudgetExceeded unless a start and a row of these lengths, and the start at the
        end, are within the limit."""
        needed = self.spent + self.cost(start_seconds + self.end_seconds, row_seconds)
        if self.usd is not None and needed > self.usd:
            raise BudgetExceeded(
                f"with {what} the sweep would cost about {format_usd(needed)}, and --max-cost is "
                f"{format_usd(self.usd)}",
                "raise --max-cost, or measure fewer settings, smaller loads or shorter workloads",
            )


@dataclass(frozen=True)
class SweepRequest:
    """The options of a sweep; ``loads`` are numbers of concurrent requests.

    ``acceptance`` is a result of ``peagle bench --acceptance``, which is imposed; ``domain`` is one
    of its domains. ``again``: measure again what ``file`` has. ``command`` is how it was asked for.
    """

    settings: str
    loads: tuple[int, ...]
    workloads: tuple[str, ...] = ("short-prompt",)
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    repetitions: int = 3
    requests: int | None = None
    acceptance: Path | None = None
    domain: str | None = None
    again: bool = False
    usd_per_hour: float | None = None
    command: tuple[str, ...] = ()

    @property
    def ks(self) -> tuple[int, ...]:
        """K of each setting; 0 is no speculation. Raises UserError."""
        return parse_settings(self.settings)

    def refuse_imposed(self) -> None:
        """Raise UserError if it imposes an acceptance: vLLM's sampler for CPUs cannot."""
        if self.acceptance:
            raise UserError(
                "the CPU engine cannot impose an acceptance",
                "add --engine docker --gpus on a machine with a GPU, or omit --impose-acceptance",
                "imposes-on-gpu-only",
            )


def parse_settings(text: str) -> tuple[int, ...]:
    """The K of each setting of ``k=none,1,3``; 0 is no speculation. Raises UserError."""
    name, _, values = text.partition("=")
    ks = []
    for value in values.split(","):
        word = value.strip()
        is_k = word.isdecimal() and word.isascii() and len(word) < 4 and 1 <= int(word) <= LARGEST_K
        if name.strip() != "k" or not (is_k or word == _NONE):
            raise UserError(
                f"--sweep {text[:80]}: {word[:40]!r} is not a value of k",
                f"write k=none,1,3 with K from 1 to {LARGEST_K}",
                "invalid-sweep",
            )
        ks.append(0 if word == _NONE else int(word))
    return tuple(dict.fromkeys(ks))


def make_sweep(request: SweepRequest, plan_of: PlanOf) -> tuple[Sweep, PlanOf]:
    """The settings and loads of the request, and the plan of each setting; ``plan_of`` makes it
    without imposed acceptance. Raises UserError, and what planning raises, for any setting."""
    measured = read_acceptance(request.acceptance) if request.acceptance else None
    if request.domain and not measured:
        raise OptionMissing("--domain requires --impose-acceptance", "add --impose-acceptance FILE")
    settings = []
    for k in request.ks:
        rates = rates_of(measured, k, request.domain) if measured and k else ()
        drafter = plan_of(BenchSetting(None, k)).drafter if k else None
        settings.append(BenchSetting(drafter.name if drafter else None, k, rates))
    loads = tuple(
        load
        for name in dict.fromkeys(request.workloads)
        for load in make_loads(
            name,
            request.loads,
            request.repetitions,
            request.requests,
            request.prompt_tokens,
            request.output_tokens,
        )
    )

    def imposing(setting: BenchSetting) -> Plan:
        plan, rates = plan_of(setting), setting.imposed_rates
        return with_imposed_acceptance(plan, rates) if rates else plan

    for setting in settings:
        imposing(setting)
    return Sweep(tuple(settings), loads), imposing


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
        """``row 3 of 12: p-eagle K=3, short-prompt x 8, 40%, about 5m left``."""
        left = self.seconds_left
        about = f", about {format_duration(left)} left" if left is not None else ""
        percent = f", {self.share:.0%}" if self.share else ""
        now = min(self.done + 1, self.total)
        return f"row {now} of {self.total}: {self.setting}, {self.load}{percent}{about}"


class _Estimate:
    """How long starts and rows take: a row that was measured as long as then, another in proportion
    to its slow answers."""

    def __init__(self, start_seconds: float, rows: Iterable[BenchRow]) -> None:
        self.start = start_seconds
        self._exact: dict[tuple[str, int], float] = {}
        self._slow = self._measured = 0.0
        for row in rows:
            self.measured(row.load, sum(repetition.seconds for repetition in row.repetitions))

    def measured(self, load: BenchLoad, seconds: float) -> None:
        self._exact[load.workload.name, load.concurrency] = seconds
        self._slow += _slow_seconds(load)
        self._measured += seconds

    def of(self, *loads: BenchLoad) -> float:
        """Seconds of rows with these loads."""
        factor = self._measured / self._slow if self._slow else 1.0
        return sum(
            self._exact.get((load.workload.name, load.concurrency), _slow_seconds(load) * factor)
            for load in loads
        )

    def left(self, starts: int, loads: Sequence[BenchLoad], done: float) -> float | None:
        """Seconds until all is measured; ``None`` before anything is."""
        return max(0.0, starts * self.start + self.of(*loads) - done) if self._slow else None


def _slow_seconds(load: BenchLoad) -> float:
    """Seconds of a row with slow answers."""
    rounds = 1 + load.repetitions * -(-load.requests // load.concurrency)
    return rounds * load.workload.size.output_tokens / _TOKENS_PER_SECOND


@dataclass(frozen=True)
class Sweep:
    """What is measured: each setting with each load, in this order."""

    settings: tuple[BenchSetting, ...]
    loads: tuple[BenchLoad, ...]

    def __post_init__(self) -> None:
        if self.total > MOST_ROWS:
            raise UserError(
                f"the sweep has {self.total:,} rows, and at most {MOST_ROWS:,} are measured "
                "together",
                "measure fewer settings, workloads or loads",
                "invalid-sweep",
            )

    @property
    def total(self) -> int:
        return len(self.settings) * len(self.loads)

    def seconds(self, rows: Sequence[BenchRow], start_seconds: float) -> tuple[float, float]:
        """How long the missing starts and rows take, about; ``start_seconds`` is of one start."""
        estimate, waiting = _Estimate(start_seconds, rows), self.missing(rows)
        left = estimate.of(*(load for loads in waiting.values() for load in loads))
        return len(waiting) * start_seconds, left

    def missing(self, rows: Iterable[BenchRow]) -> dict[BenchSetting, list[BenchLoad]]:
        """The loads of each setting that have no complete row."""
        done = {_key(row.setting, row.load) for row in rows if not row.incomplete}
        waiting = {
            setting: [load for load in self.loads if _key(setting, load) not in done]
            for setting in self.settings
        }
        return {setting: loads for setting, loads in waiting.items() if loads}

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
        budget = budget or Budget(None, None)
        estimate = _Estimate(start_seconds, file.result.rows)
        waiting = self.missing(file.result.rows)

        def show(setting: BenchSetting, load: BenchLoad, ended: int = 0, total: int = 0) -> None:
            left = [load for loads in waiting.values() for load in loads]
            starts = sum(another != setting for another in waiting)
            share = ended / total if total else 0.0
            seconds = estimate.left(starts, left, share * estimate.of(load))
            done = self.total - len(left)
            observe(SweepProgress(done, self.total, setting.text, load.text, share, seconds))

        for setting, loads in list(waiting.items()):
            what = f"{setting.text} with {loads[0].text}"
            budget.require(estimate.start, estimate.of(loads[0]), what)
            show(setting, loads[0])
            begun = clock()
            with opened(setting) as measure:
                estimate.start = clock() - begun
                budget.started(estimate.start)
                while loads:
                    load = loads[0]
                    what = f"{setting.text} with {load.text}"
                    budget.require(0.0, estimate.of(load), what)
                    show(setting, load)
                    begun = clock()
                    row = measure(load, partial(show, setting, load))
                    estimate.measured(load, clock() - begun)
                    file.add(replace(row, setting=setting), budget.spent)
                    if row.incomplete:
                        raise EngineError(f"{what}: {row.incomplete}", code="load-failed")
                    loads.pop(0)
            del waiting[setting]
        measured = {_key(row.setting, row.load): row for row in file.result.rows}
        keys = [_key(setting, load) for setting in self.settings for load in self.loads]
        rows = [measured[key] for key in keys if key in measured]
        return replace(file.result, rows=with_saturation(rows))


class ResultFile:
    """A result on disk, which holds every finished row at any time."""

    def __init__(self, path: Path, result: BenchResult) -> None:
        self.path, self.result = path, result

    @classmethod
    def continued(cls, path: Path, fresh: BenchResult, again: bool = False) -> ResultFile:
        """The file at ``path`` with the rows that it has, or without any for ``again``.

        Raises UserError for a damaged file and for rows of another pair, engine or GPU.
        """
        if again or not path.exists():
            return cls(path, fresh)
        kept, _ = read_result(path)
        for name in ("pair", "vllm", "gpu", "tensor_parallel_size", "where", "instance_type"):
            old, new = getattr(kept.server, name), getattr(fresh.server, name)
            if old != new:
                raise UserError(
                    f"{path} has rows of another {name.replace('_', ' ')}: {old}, not {new}",
                    "choose another file with -o, or begin again with --again",
                    "other-result",
                )
        return cls(
            path, replace(fresh, started=kept.started, rows=kept.rows, spent_usd=kept.spent_usd)
        )

    def spend(self, usd: float) -> None:
        """Keep what the sweep has cost in all, so that a sweep that continues counts it."""
        if usd:
            self.result = replace(self.result, spent_usd=round(usd, 4))
            write_json(self.path, self.result.document())

    def add(self, row: BenchRow, spent_usd: float = 0.0) -> None:
        """Keep the row, in place of one with the same setting and load, and what has been spent."""
        key = _key(row.setting, row.load)
        others = [other for other in self.result.rows if _key(other.setting, other.load) != key]
        spent = round(spent_usd, 4) if spent_usd else self.result.spent_usd
        self.result = replace(self.result, rows=(*others, row), spent_usd=spent)
        write_json(self.path, self.result.document())


def _key(setting: BenchSetting, load: BenchLoad) -> tuple[object, ...]:
    """What makes two rows the same: whether answers had their full length does not."""
    workload = load.workload
    same = (workload.name, workload.size, workload.digest)
    return (setting, *same, load.concurrency, load.repetitions)
