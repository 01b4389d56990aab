"""Measure several settings of a pair, row by row: with engines of this machine, or on a deployment.

One engine serves all loads of a setting. What is measured goes to a result file after each row; the
same command reads it and measures only what is missing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from peagle.aws.client import Aws
from peagle.bench import load as sending
from peagle.bench.acceptance import compute_rates, read_acceptance, with_imposed_acceptance
from peagle.bench.evidence import read_result
from peagle.bench.load import Measure, make_measure, new_result
from peagle.bench.lossless import SweepLossless
from peagle.bench.result import BenchedServer, BenchLoad, BenchResult, BenchRow, BenchSetting
from peagle.bench.targets import open_endpoint, open_engine, with_gpus
from peagle.catalog.find import find_drafter
from peagle.catalog.schema import Catalog
from peagle.deploy.state import Deployment
from peagle.engine.gpus import find_gpus, visible_gpus
from peagle.engine.local import StepProgress, exclusive, running_engine
from peagle.engine.runner import LocalRunner
from peagle.errors import EngineError, Fix, OptionMissing, UserError
from peagle.planning.plan import Plan
from peagle.planning.speculation import with_speculation, without_floor
from peagle.render.plan_file import plan_bytes, read_plan
from peagle.speed.acceptance import curve_through, position_rates, published_rates
from peagle.store import SANDBOX, home, private_folder, write_file, write_json
from peagle.text import format_usd, plain

LARGEST_K = 64

Imposed = Path | float | Literal["published"]
"""The acceptance to impose: that of the result in a file, a mean length, or what the catalogue
quotes for the drafter."""

PlanOf = Callable[[BenchSetting], Plan]


@dataclass(frozen=True)
class SweepRequest:
    """What a sweep measures: each of the ``ks``, of which 0 is no speculation, with each load.
    ``acceptance`` is imposed. ``again``: measure again what the file has."""

    ks: tuple[int, ...]
    loads: tuple[BenchLoad, ...]
    acceptance: Imposed | None = None
    domain: str | None = None
    again: bool = False
    usd_per_hour: float | None = None
    command: tuple[str, ...] = ()

    def refuse_imposed(self) -> None:
        """Raise UserError if it imposes an acceptance: vLLM's sampler for CPUs cannot."""
        if self.acceptance is not None:
            raise UserError(
                "the CPU engine cannot impose an acceptance",
                "use a machine with a GPU, or omit --impose-acceptance",
                "imposes-on-gpu-only",
            )


def parse_imposed(text: str) -> Imposed:
    """``published``, a mean length such as 2.5, else the file of a result."""
    try:
        return "published" if text == "published" else float(text)
    except ValueError:
        return Path(text)


def parse_ks(text: str) -> tuple[int, ...]:
    """The K of each setting in ``k=none,1,3``; 0 is no speculation. Raises UserError."""
    name, _, values = text.partition("=")
    ks, is_of_k = [], name.strip() == "k"
    for word in map(str.strip, values.split(",")):
        is_k = re.fullmatch("[0-9]{1,3}", word) and 1 <= int(word) <= LARGEST_K
        if not is_of_k or not (is_k or word == "none"):
            what = f"{word[:40]!r} is not a value of k" if is_of_k else "only k can be swept"
            raise UserError(
                f"--sweep {text[:80]}: {what}",
                f"write k=none,1,3 with K from 1 to {LARGEST_K}",
                "invalid-sweep",
            )
        ks.append(0 if word == "none" else int(word))
    return tuple(dict.fromkeys(ks))


class BudgetExceeded(UserError, code="budget-too-small"):
    """The next row would cost more than the user allows."""


@dataclass
class Budget:
    """What a sweep may cost: ``usd`` in all. While an update of an endpoint runs, the instances of
    both revisions cost. A start of ``end_seconds`` must remain possible."""

    usd: float | None = None
    usd_per_hour: float = 0.0
    spent: float = 0.0
    end_seconds: float = 0.0

    def cost(self, start_seconds: float, row_seconds: float) -> float:
        """USD of a start and of rows."""
        return (2 * start_seconds + row_seconds) / 3600 * self.usd_per_hour

    def require(self, start_seconds: float, row_seconds: float, what: str) -> None:
        """Raise BudgetExceeded unless a start and a row of these lengths are within the limit."""
        needed = self.spent + self.cost(start_seconds + self.end_seconds, row_seconds)
        if self.usd is not None and needed > self.usd:
            raise BudgetExceeded(
                f"with {what} the sweep would cost about {format_usd(needed)}, and --max-cost is "
                f"{format_usd(self.usd)}",
                "raise --max-cost, or measure fewer settings, smaller loads or shorter workloads",
            )


class SweepProgress(NamedTuple):
    """How many rows of how many are done; the current one, and the ``share`` of its requests that
    have ended. ``seconds_left`` is of all rows, ``None`` before one is measured."""

    done: int
    total: int
    setting: BenchSetting
    load: BenchLoad
    share: float
    seconds_left: float | None


@dataclass(frozen=True)
class Sweep:
    """What is measured: each setting with each load, in this order."""

    settings: tuple[BenchSetting, ...]
    loads: tuple[BenchLoad, ...]

    @property
    def total(self) -> int:
        return len(self.settings) * len(self.loads)

    def seconds(self, rows: Sequence[BenchRow], start_seconds: float) -> tuple[float, float]:
        """How long the missing starts and rows take, about; ``start_seconds`` is of one start."""
        missing = self.missing(rows)
        left = [load for loads in missing.values() for load in loads]
        return len(missing) * start_seconds, _estimate_seconds(left, _measured(rows))

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
        opened: Callable[[BenchSetting], AbstractContextManager[Measure]],
        observe: Callable[[SweepProgress], object] = lambda progress: None,
        budget: Budget | None = None,
        start_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> BenchResult:
        """Measure what ``file`` does not hold, and return all rows of this sweep; whatever ends it
        early, ``file`` has every finished row. ``start_seconds`` is of a start before one is
        measured. Raises EngineError for a load that ends early, and BudgetExceeded."""
        budget = budget or Budget()
        measured = _measured(file.result.rows)
        waiting = self.missing(file.result.rows)

        def show(setting: BenchSetting, load: BenchLoad, ended: int = 0, total: int = 0) -> None:
            left = [load for loads in waiting.values() for load in loads]
            share = ended / total if total else 0.0
            seconds = None
            if measured:
                seconds = _estimate_seconds(left, measured)
                seconds -= share * _estimate_seconds([load], measured)
                seconds += start_seconds * sum(another != setting for another in waiting)
            done = self.total - len(left)
            observe(SweepProgress(done, self.total, setting, load, share, seconds))

        for setting, loads in list(waiting.items()):
            row_seconds = _estimate_seconds(loads[:1], measured)
            budget.require(start_seconds, row_seconds, f"{setting.text} with {loads[0].text}")
            show(setting, loads[0])
            with ExitStack() as engine:
                begun = clock()
                try:
                    measure = engine.enter_context(opened(setting))
                finally:
                    start_seconds = clock() - begun
                    budget.spent += budget.cost(start_seconds, 0.0)
                while loads:
                    load, what = loads[0], f"{setting.text} with {loads[0].text}"
                    budget.require(0.0, _estimate_seconds([load], measured), what)
                    show(setting, load)
                    begun = clock()
                    try:
                        row = measure(load, partial(show, setting, load))
                    finally:
                        seconds = clock() - begun
                        budget.spent += budget.cost(0.0, seconds)
                    measured[load.text] = (seconds, _slow_seconds(load))
                    file.add(replace(row, setting=setting), budget.spent)
                    if row.incomplete:
                        fix = "look at the engine's log"
                        raise EngineError(f"{what}: {row.incomplete}", fix, "load-failed")
                    loads.pop(0)
            del waiting[setting]
        rows = {_key(row.setting, row.load): row for row in file.result.rows}
        keys = [_key(setting, load) for setting in self.settings for load in self.loads]
        return replace(file.result, rows=tuple(rows[key] for key in keys if key in rows))


def _slow_seconds(load: BenchLoad) -> float:
    """Seconds of a row with slow answers, of 20 tokens per second."""
    rounds = 1 + load.repetitions * -(-load.requests // load.concurrency)
    return rounds * load.workload.size.output_tokens / 20.0


def _measured(rows: Iterable[BenchRow]) -> dict[str, tuple[float, float]]:
    """Each measured load -> the seconds of its row, and those with slow answers."""
    return {
        row.load.text: (sum(each.seconds for each in row.repetitions), _slow_seconds(row.load))
        for row in rows
    }


def _estimate_seconds(
    loads: Iterable[BenchLoad], measured: Mapping[str, tuple[float, float]]
) -> float:
    """Seconds of rows with these loads: as long as a measured one, else in proportion to its slow
    answers."""
    slow = sum(slow for _, slow in measured.values())
    factor = sum(seconds for seconds, _ in measured.values()) / slow if slow else 1.0
    return sum(
        measured[load.text][0] if load.text in measured else factor * _slow_seconds(load)
        for load in loads
    )


def _key(setting: BenchSetting, load: BenchLoad) -> tuple[object, ...]:
    """What makes two rows the same: whether answers had their full length does not."""
    workload = load.workload
    same = (workload.name, workload.size, workload.digest)
    return (setting, *same, load.concurrency, load.repetitions)


class ResultFile:
    """A result on disk, which holds every finished row at any time."""

    def __init__(self, path: Path, result: BenchResult) -> None:
        self.path, self.result = path, result

    @classmethod
    def continued(cls, path: Path, fresh: BenchResult, again: bool = False) -> ResultFile:
        """The file at ``path`` with the rows that it has, or without any for ``again``. Raises
        UserError for a damaged file and for rows of another pair, engine or GPU."""
        if again or not path.exists():
            return cls(path, fresh)
        kept = read_result(path)
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

    def add(self, row: BenchRow | None, spent_usd: float = 0.0) -> None:
        """Keep the row, in place of one with the same setting and load, and what has been spent in
        all, so that a sweep that continues counts it."""
        rows = self.result.rows
        if row is not None:
            key = _key(row.setting, row.load)
            rows = (*(other for other in rows if _key(other.setting, other.load) != key), row)
        spent = round(spent_usd, 4) if spent_usd else self.result.spent_usd
        self.result = replace(self.result, rows=rows, spent_usd=spent)
        write_json(self.path, plain(self.result))


def make_sweep(request: SweepRequest, plan_of: PlanOf, catalog: Catalog) -> tuple[Sweep, PlanOf]:
    """The settings and loads of the request, and the plan of each setting; ``plan_of`` makes it
    without imposed acceptance. Raises UserError, and what planning raises, for any setting."""
    acceptance = request.acceptance
    measured = read_acceptance(acceptance) if isinstance(acceptance, Path) else None
    if request.domain and not measured:
        raise OptionMissing("--domain requires --impose-acceptance", "add --impose-acceptance FILE")

    def imposing(setting: BenchSetting) -> Plan:
        plan, rates = plan_of(setting), setting.imposed_rates
        return with_imposed_acceptance(plan, rates) if rates else plan

    settings = []
    for k in request.ks:
        plan, rates = plan_of(BenchSetting(None, k)), tuple[float, ...]()
        if measured and k:
            rates = compute_rates(measured, k, request.domain)
        elif acceptance is not None and k:
            rates = _assume_rates(acceptance, plan, k, catalog)
        drafter = plan.drafter.name if k and plan.drafter else None
        settings.append(BenchSetting(drafter, k, rates))
    return Sweep(tuple(settings), request.loads), imposing


def _assume_rates(acceptance: Imposed, plan: Plan, k: int, catalog: Catalog) -> tuple[float, ...]:
    """The rates for a mean length, or those published for the plan's drafter."""
    decay = catalog.speed_model.decay
    if isinstance(acceptance, float):
        if not 1 < acceptance < k + 1:
            message = f"no acceptance length of {acceptance:g} is possible with K={k}"
            raise UserError(message, f"use one above 1 and below {k + 1}", "acceptance-file")
        return position_rates(curve_through(((k, acceptance),), decay), k)
    assert plan.drafter is not None, "a setting with a K has a drafter"
    drafter = find_drafter(catalog.targets[plan.target.id], plan.drafter.name)
    if rates := published_rates(drafter, k, decay):
        return rates
    message = f"no acceptance of {plan.pair} is published"
    raise UserError(message, "measure it: bench --acceptance", "no-published-acceptance")


def sweep_on_this_machine(
    request: SweepRequest,
    file: Path,
    plan_of: PlanOf,
    runner: LocalRunner,
    catalog: Catalog,
    say: StepProgress,
    observe: Callable[[SweepProgress], object],
    lossless: SweepLossless | None = None,
) -> BenchResult:
    """Measure the settings with engines of this machine; every row is kept in ``file``. ``say``
    shows the step of a start and the last line of the log. With ``lossless`` each engine's greedy
    answers are collected, too. Raises what starting and measuring an engine raises."""
    if not runner.gpus:
        request.refuse_imposed()
    sender = sending.find_sender()
    sweep, plan_of = make_sweep(request, plan_of, catalog)
    largest = plan_of(max(sweep.settings, key=lambda setting: setting.k))
    server = BenchedServer(
        name=largest.name,
        where="local",
        base_url="",
        model=largest.target.id,
        pair=largest.pair,
        vllm=largest.runtime.vllm,
        tensor_parallel_size=largest.fit.tensor_parallel_size if runner.gpus else 1,
    )
    if runner.gpus and (machine := find_gpus()):  # a Docker engine may be elsewhere
        server = with_gpus(server, visible_gpus(machine), catalog)
    price = request.usd_per_hour
    fresh = new_result(server, sender, request.command, price, "given" if price else None)

    @contextmanager
    def opened(setting: BenchSetting) -> Iterator[Measure]:
        """The engine of this setting, with a name of its own and no floor, since a low acceptance
        is a result, until the block ends. A failed engine leaves its log."""
        plan = without_floor(plan_of(setting))
        plan = plan.model_copy(update={"name": f"{plan.name}-bench"})
        with exclusive(plan.name, "bench"), running_engine(plan, say, runner) as engine:
            target = replace(open_engine(engine, catalog), setting=setting, usd_per_hour=price)
            if lossless is not None:
                lossless.ask(setting, target)
            yield make_measure(target, sender)

    measured = sweep.run(ResultFile.continued(file, fresh, request.again), opened, observe)
    if lossless is not None:
        lossless.complete(sweep.settings, opened)
    return measured


START_SECONDS, SANDBOX_START_SECONDS = 600.0, 60.0
"""How long an update takes, for the price before one is measured."""


class EndpointSweep:
    """A sweep on a deployment: each setting is an update of its endpoint, which is proved and
    measured; then the endpoint is updated to the plan that it had before, which is kept in a file
    until then. Nothing is changed before ``run``. ``usd`` is about what the rest of the sweep
    costs; ``spent`` are the USD of earlier runs. ``default_limit`` is what it may cost in all
    without another limit; ``None`` in the sandbox, which is free, and for an unknown price."""

    def __init__(
        self,
        request: SweepRequest,
        path: Path,
        aws: Aws,
        record: Deployment,
        catalog: Catalog,
        deploy: Callable[[Plan], Deployment],
    ) -> None:
        """Every row is kept in ``path``; ``deploy`` updates the endpoint and proves it. Raises
        SenderMissing, and UserError for a deployment whose plan has no drafter, and for an
        acceptance to impose on engines of the sandbox."""
        in_sandbox = aws.scope == SANDBOX
        if in_sandbox:
            request.refuse_imposed()
        self.aws, self.record, self._catalog, self._deploy = aws, record, catalog, deploy
        self._sender = sending.find_sender()
        self._kept = home() / "bench" / record.scope / record.region / f"{record.name}.json"
        before = read_plan(self._kept) if self._kept.exists() else record.current.plan
        if before is None or before.speculation is None:
            why = "without speculation" if before else "by another machine: its plan is unknown"
            command = ("peagle", "deploy", "PAIR", "--name", record.name)
            fix = Fix("deploy a pair with its drafter from here first", command)
            raise UserError(f"{record.name} was deployed {why}", fix, "no-plan")
        self.before = before
        self.sweep, self._plan_of = make_sweep(
            request, lambda setting: plan_with(before, setting), catalog
        )
        target = open_endpoint(aws, record.name, record, catalog)
        server = replace(target.facts, pair=before.pair)
        price = (target.usd_per_hour, target.price_source)
        fresh = new_result(server, self._sender, request.command, *price)
        self.file = ResultFile.continued(path, fresh, request.again)
        self.start_seconds = SANDBOX_START_SECONDS if in_sandbox else START_SECONDS
        starts, rows = self.sweep.seconds(self.file.result.rows, self.start_seconds)
        starts += self.start_seconds if starts else 0.0  # the update to what it was before
        self.seconds = starts + rows
        self.usd_per_hour = before.price_per_hour_usd
        self.spent = self.file.result.spent_usd or 0.0
        self.usd = self.default_limit = None
        if self.usd_per_hour is not None:
            self.usd = Budget(None, self.usd_per_hour).cost(starts, rows)
            # Half as much again as shown.
            self.default_limit = None if in_sandbox else self.spent + 1.5 * self.usd

    @property
    def plan_to_return_to(self) -> Path | None:
        """The file of the plan that the endpoint had before, while it has another."""
        return self._kept if self._kept.exists() else None

    def run(
        self, max_cost: float | None, observe: Callable[[SweepProgress], object]
    ) -> BenchResult:
        """Measure what is missing, then update the endpoint to what it was before; also when
        ``max_cost`` (USD of all runs, by default ``default_limit``) allows no further row, which
        raises BudgetExceeded. After another error or an interrupt the endpoint stays as it is."""
        if max_cost is not None and self.usd_per_hour is None:
            message = f"the price of {self.record.name} is unknown, so that no cost can be limited"
            raise UserError(message, "omit --max-cost", "price-unknown")
        limit = self.default_limit if max_cost is None else max_cost
        budget = Budget(limit, self.usd_per_hour or 0.0, self.spent, self.start_seconds)
        try:
            result = self.sweep.run(self.file, self.opened, observe, budget, self.start_seconds)
            self._restore(budget)
        except BudgetExceeded:
            self._restore(budget)
            raise
        finally:
            self.file.add(None, budget.spent)
        return replace(result, spent_usd=self.file.result.spent_usd)

    @contextmanager
    def opened(self, setting: BenchSetting) -> Iterator[Measure]:
        """The endpoint, updated to this setting and proved. Raises what ``deploy`` raises."""
        if not self._kept.exists():
            private_folder(self._kept.parent)
            write_file(self._kept, plan_bytes(self.before))
        record = self._deploy(self._plan_of(setting))
        target = open_endpoint(self.aws, record.name, record, self._catalog)
        yield make_measure(replace(target, setting=setting), self._sender)

    def _restore(self, budget: Budget) -> None:
        """Update the endpoint to the plan that it had before. Raises what ``deploy`` raises."""
        if self._kept.exists():
            begun = time.monotonic()
            self._deploy(self.before)
            self._kept.unlink()
            budget.spent += budget.cost(time.monotonic() - begun, 0.0)


def plan_with(plan: Plan, setting: BenchSetting) -> Plan:
    """The plan with the K of the setting, or without speculation; without a floor, since a low
    acceptance is a result."""
    speculation = without_floor(plan).speculation
    if speculation is not None:
        speculation = speculation.model_copy(update={"k": setting.k}) if setting.k else None
    return with_speculation(plan, speculation)
