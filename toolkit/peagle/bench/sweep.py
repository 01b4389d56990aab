"""Measure several settings of a pair, on this machine or on a deployment, row by row.

One engine serves all loads of a setting. What is measured goes to a result file after each row; the
same command reads it and measures only what is missing. On a deployment each setting is an update
of its endpoint, which is proved and measured; afterwards the endpoint is updated to the plan that
it had before. That plan is kept in a file until then, so that an interrupted sweep can be
continued, or undone with ``peagle deploy FILE``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from peagle import __version__
from peagle.aws.client import Aws
from peagle.bench import aiperf
from peagle.bench.acceptance import (
    SweepLossless,
    rates_of,
    read_acceptance,
    with_imposed_acceptance,
)
from peagle.bench.aiperf import Aiperf
from peagle.bench.measure import BenchTarget, measure_of, this_host, with_saturation
from peagle.bench.models import (
    BenchedServer,
    BenchLoad,
    BenchResult,
    BenchRow,
    BenchSetting,
    utc_now,
)
from peagle.bench.results import evidence_document, evidence_name, evidence_text, read_result
from peagle.bench.targets import target_of_endpoint, target_of_engine
from peagle.bench.workloads import find_workload, make_load
from peagle.catalog.schema import Catalog
from peagle.deploy.apply import deploy
from peagle.deploy.context import Observer
from peagle.deploy.preflight import preflight
from peagle.deploy.records import find_record
from peagle.deploy.state import Deployment
from peagle.engine import state as records
from peagle.engine.local import StepProgress, end_engine, exclusive, start_local, stop_local
from peagle.engine.runner import LocalOptions
from peagle.engine.state import LocalEngine, local_engine_names, read_local_engine
from peagle.errors import EngineError, Fix, OptionMissing, Refused, UserError
from peagle.findings import errors
from peagle.planning import Options, make_plan
from peagle.planning.plan import Plan
from peagle.planning.speculation import with_speculation, without_floor
from peagle.render.plan_file import plan_bytes, read_plan
from peagle.store import SANDBOX, home, private_folder, write_file, write_json
from peagle.text import format_duration, format_usd
from peagle_serve.contract import SPECULATION
from peagle_serve.warm_start import UnknownDevice, gpu_device


class BudgetExceeded(UserError, code="budget-too-small"):
    """The next row would cost more than the user allows."""


class Budget:
    """What a sweep may cost: ``usd`` in all, at ``usd_per_hour`` from its start. While an update of
    an endpoint runs, the instances of both revisions cost: ``start_factor`` 2. ``before`` are the
    USD of earlier runs, ``end_seconds`` the start that must remain possible at the end."""

    def __init__(
        self,
        usd: float | None,
        usd_per_hour: float | None,
        start_factor: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        *,
        before: float = 0.0,
        end_seconds: float = 0.0,
    ) -> None:
        self._usd, self._per_hour, self._clock = usd, usd_per_hour or 0.0, clock
        self._before, self._end = before, end_seconds
        self._begun = clock()
        self._start_factor, self._more = start_factor, 0.0

    @property
    def spent(self) -> float:
        """USD since the start, and of earlier runs."""
        seconds = self._clock() - self._begun + self._more
        return self._before + seconds / 3600 * self._per_hour

    def cost(self, start_seconds: float, row_seconds: float) -> float:
        """USD of a start and of rows."""
        seconds = self._start_factor * start_seconds + row_seconds
        return seconds / 3600 * self._per_hour

    def started(self, seconds: float) -> None:
        """A start took so long."""
        self._more += (self._start_factor - 1) * seconds

    def require(self, start_seconds: float, row_seconds: float, what: str) -> None:
        """Raise BudgetExceeded unless a start and a row of these lengths, and the start at the
        end, are within the limit."""
        if self._usd is None:
            return
        needed = self.spent + self.cost(start_seconds + self._end, row_seconds)
        if needed > self._usd:
            raise BudgetExceeded(
                f"with {what} the sweep would cost about {format_usd(needed)}, and --max-cost is "
                f"{format_usd(self._usd)}",
                "raise --max-cost, or measure fewer settings, smaller loads or shorter workloads",
            )


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
            first = f"{setting.text} with {loads[0].text}"
            budget.require(estimate.start, estimate.of(loads[0]), first)
            show(setting, loads[0])
            begun = clock()
            with opened(setting) as measure:
                estimate.started(clock() - begun)
                budget.started(clock() - begun)
                for number, load in enumerate(loads):
                    what = f"{setting.text} with {load.text}"
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
            load=load.text,
            share=share,
            seconds_left=estimate.left(starts, left, share * estimate.of(load)),
        )


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


BENCH_SUFFIX = "-bench"
"""Ends the names of a bench's engines, so that no engine of ``peagle local up`` is replaced."""

ALONE_SUFFIX = "-alone"
"""Ends the name of the engine that serves the target of another one alone."""

_WORD = re.compile(r"[A-Z0-9]+")


@dataclass(frozen=True)
class LocalEngines:
    """Starts the plan of a setting on this machine.

    ``plan_of`` makes the plan; ``options`` choose process or container; ``say`` shows the step of
    a start and the last line of the log. ``usd_per_hour`` is of this machine. ``started`` is called
    with each engine before it is measured.
    """

    plan_of: Callable[[BenchSetting], Plan]
    options: LocalOptions
    sender: Aiperf
    say: Callable[[str, str], object] = lambda step, line: None
    usd_per_hour: float | None = None
    started: Callable[[BenchSetting, BenchTarget], object] = lambda setting, target: None

    @contextmanager
    def opened(self, setting: BenchSetting) -> Iterator[Measure]:
        """The engine of this setting, until the block ends. A failed engine leaves its log.

        Raises what ``start_local`` and ``probe`` raise.
        """
        plan = bench_plan(self.plan_of(setting))
        with exclusive(plan.name, "bench"):
            if plan.name in records.local_engine_names():
                stop_local(plan.name, now=True)  # of a sweep that was killed
            engine = start_local(plan, progress=self.say, options=self.options)
            try:
                target = replace(
                    target_of_engine(engine), setting=setting, usd_per_hour=self.usd_per_hour
                )
                self.started(setting, target)
                yield measure_of(target, self.sender)
            except EngineError:
                end_engine(engine)
                raise
            except BaseException:
                stop_local(plan.name, now=True)
                raise
            stop_local(plan.name, now=True)


def bench_plan(plan: Plan) -> Plan:
    """The plan under a name of its own and without a floor: a low acceptance is a result."""
    return without_floor(plan).model_copy(update={"name": f"{plan.name}{BENCH_SUFFIX}"})


def local_server(plan: Plan, gpus: Iterable[str], uses_gpus: bool) -> BenchedServer:
    """What is measured on this machine; ``gpus`` are the names of the catalogue."""
    found = gpus_here(gpus) if uses_gpus else None
    return BenchedServer(
        name=plan.name,
        where="local",
        base_url="",
        model=plan.target.id,
        pair=plan.pair,
        vllm=plan.runtime.vllm,
        gpu=found[0] if found else None,
        gpu_count=found[1] if found else None,
        tensor_parallel_size=plan.fit.tensor_parallel_size if uses_gpus else 1,
    )


def gpus_here(known: Iterable[str]) -> tuple[str, int] | None:
    """The GPU of this machine by its name in the catalogue, else by its own, and their number;
    ``None`` without a GPU."""
    try:
        names = [name.rpartition(" (")[0] for name in gpu_device()["gpus"]]
    except UnknownDevice:
        return None
    return catalog_name(names[0], known), len(names)


def catalog_name(gpu: str, known: Iterable[str]) -> str:
    """``H100`` for ``NVIDIA H100 80GB HBM3``: the longest name of the catalogue whose words occur
    in it, in order; else ``gpu`` itself."""
    words = _WORD.findall(gpu.upper())
    fitting = [name for name in known if _is_within(_WORD.findall(name.upper()), words)]
    return max(fitting, key=len, default=gpu)


def _is_within(name: list[str], words: list[str]) -> bool:
    """Whether the words of the name are in ``words``, in their order; ``SE`` is Server Edition."""
    rest = iter(words)
    return all(word in rest for word in name if word != "SE")


def plan_alone(engine: LocalEngine, catalog: Catalog) -> Plan:
    """The plan of the engine's target with the engine's own settings, and without speculation.

    Raises UserError for an engine in a container, whose image is not known here, and NotFound for a
    target that the catalogue does not have.
    """
    if engine.image is not None:
        raise UserError(
            f"{engine.name} runs in a container",
            Fix(
                "start its target alone, and pass its address with --against",
                ("peagle", "local", "up", engine.served_as, "--no-speculation",
                 "--engine", "docker", "--name", f"{engine.name}{ALONE_SUFFIX}"),
            ),
            "in-a-container",
        )  # fmt: skip
    options = Options(
        pair=engine.served_as,
        name=f"{engine.name}{ALONE_SUFFIX}",
        vllm=engine.vllm,
        speculation=False,
    )
    environment = {k: v for k, v in engine.environment.items() if k != SPECULATION}
    return make_plan(options, catalog).model_copy(update={"environment": environment})


def target_alone(
    engine: LocalEngine, catalog: Catalog, progress: StepProgress = lambda step, line: None
) -> AbstractContextManager[LocalEngine]:
    """The target of ``engine`` alone, which runs while the block does; one that ran before is left
    running. Raises what ``plan_alone`` raises at once, and ``start_local`` in the block."""
    return _running(plan_alone(engine, catalog), progress)


@contextmanager
def _running(plan: Plan, progress: StepProgress) -> Iterator[LocalEngine]:
    ran = plan.name in local_engine_names() and read_local_engine(plan.name) is not None
    started = start_local(plan, progress=progress)
    try:
        yield started
    finally:
        if not ran:
            stop_local(plan.name, now=True)


START_SECONDS = 600.0
"""How long an update takes, for the price before one is measured."""

SANDBOX_START_SECONDS = 60.0
"""The same in the sandbox."""


def plan_before(record: Deployment) -> Plan:
    """The plan that the endpoint had before the sweep began, which is kept in ``kept_plan``.

    Raises UserError for a deployment whose plan is unknown or has no drafter.
    """
    kept = kept_plan(record)
    plan = read_plan(kept) if kept.exists() else record.current.plan
    if plan is None or plan.speculation is None:
        why = "without speculation" if plan else "by another machine, so that its plan is unknown"
        raise UserError(
            f"{record.name} was deployed {why}",
            Fix("deploy a pair with its drafter from here first",
                ("peagle", "deploy", "PAIR", "--name", record.name)),
            "no-plan",
        )  # fmt: skip
    return plan


def kept_plan(record: Deployment) -> Path:
    """The file of the plan that serves again after the sweep."""
    return home() / "bench" / record.scope / record.region / f"{record.name}.json"


def plan_with(plan: Plan, setting: BenchSetting) -> Plan:
    """The plan with the K of the setting, or without speculation; without a floor, since a low
    acceptance is a result. Raises UserError for a plan without a drafter."""
    speculation = without_floor(plan).speculation
    if speculation is not None:
        speculation = speculation.model_copy(update={"k": setting.k}) if setting.k else None
    return with_speculation(plan, speculation)


@dataclass(frozen=True)
class EndpointRevisions:
    """Updates the endpoint of ``record`` to the settings of a sweep, and back to ``before``."""

    aws: Aws
    record: Deployment
    before: Plan
    plan_of: Callable[[BenchSetting], Plan]
    catalog: Catalog
    sender: Aiperf
    observe: Observer

    @property
    def start_seconds(self) -> float:
        """How long an update takes, about."""
        return SANDBOX_START_SECONDS if self.aws.scope == SANDBOX else START_SECONDS

    @contextmanager
    def opened(self, setting: BenchSetting) -> Iterator[Measure]:
        """The endpoint, updated to this setting and proved. Raises what ``deploy`` raises."""
        kept = kept_plan(self.record)
        if not kept.exists():
            private_folder(kept.parent)
            write_file(kept, plan_bytes(self.before))
        self._deploy(self.plan_of(setting))
        record = find_record(self.record.name, self.aws.scope, self.aws.region)
        target = target_of_endpoint(self.aws, record.name, record, self.catalog)
        target = replace(target, setting=setting)
        yield measure_of(target, self.sender)

    def restore(self) -> None:
        """Update the endpoint to the plan that it had before. Raises what ``deploy`` raises."""
        kept = kept_plan(self.record)
        if kept.exists():
            self._deploy(self.before)
            kept.unlink()

    def _deploy(self, plan: Plan) -> None:
        found = preflight(self.aws, plan, self.catalog.instances)
        for first in errors(found.findings):
            raise Refused(first.message, Fix(first.fix, tuple(first.command or ())), first.code)
        deploy(self.aws, found, self.observe)


_ROWS = b'"speeds": ['
"""Where the rows of an evidence file begin."""

LIMIT = 1.5
"""Times the shown cost: what a sweep of an endpoint may cost by default."""

PlanOf = Callable[[BenchSetting], Plan]


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


def make_sweep(request: SweepRequest, plan_of: PlanOf) -> tuple[Sweep, PlanOf]:
    """The settings and loads of the request, and the plan of each setting; ``plan_of`` makes it
    without imposed acceptance. Raises UserError, and what planning raises."""
    measured = read_acceptance(request.acceptance) if request.acceptance else None
    if request.domain and not measured:
        raise OptionMissing("--domain requires --impose-acceptance", "add --impose-acceptance FILE")
    settings = []
    for k in request.ks:
        rates = rates_of(measured, k, request.domain) if measured and k else ()
        drafter = plan_of(BenchSetting(None, k)).drafter if k else None
        settings.append(BenchSetting(drafter.name if drafter else None, k, rates))
    workloads = [
        find_workload(name, request.prompt_tokens, request.output_tokens)
        for name in dict.fromkeys(request.workloads)
    ]
    loads = tuple(
        make_load(workload, load, request.repetitions, request.requests)
        for workload in workloads
        for load in request.loads
    )

    def imposing(setting: BenchSetting) -> Plan:
        plan = plan_of(setting)
        if not setting.imposed_rates:
            return plan
        return with_imposed_acceptance(plan, setting.imposed_rates)

    return Sweep(tuple(settings), loads), imposing


def sweep_on_this_machine(
    request: SweepRequest,
    file: Path,
    plan_of: PlanOf,
    options: LocalOptions,
    catalog: Catalog,
    say: StepProgress,
    observe: Callable[[SweepProgress], object],
    lossless: SweepLossless | None = None,
) -> BenchResult:
    """Measure the settings with engines of this machine; every row is kept in ``file``.

    With ``lossless`` each engine's greedy answers are collected, too, and those of the target.

    Raises SenderMissing, UserError, and what starting and measuring an engine raises.
    """
    if not options.gpus:
        _refuse_imposed(request, "add --engine docker --gpus")
    sender = aiperf.load_sender()
    sweep, plan_of = make_sweep(request, plan_of)
    for setting in sweep.settings:
        plan_of(setting)  # refuses a setting before any engine starts
    largest = plan_of(max(sweep.settings, key=lambda setting: setting.k))
    known = {instance.gpu for instance in catalog.instances.instances}
    server = local_server(largest, known, options.gpus)
    result = ResultFile.continued(file, _fresh(request, server, sender), request.again)
    engines = LocalEngines(plan_of, options, sender, say, request.usd_per_hour)
    if lossless is None:
        return sweep.run(result, engines.opened, observe)
    engines = replace(engines, started=lossless.ask)
    found = sweep.run(result, engines.opened, observe)
    lossless.complete(sweep.settings, engines.opened)
    return found


@dataclass(frozen=True)
class EndpointSweep:
    """A sweep on a deployment, ready to begin: what it may cost, and what it continues.

    ``usd_per_hour`` is of the endpoint as it is; ``usd`` is about what the rest of the sweep costs,
    with the instances of two revisions during each update, the last one too; ``None`` for an
    unknown price.
    """

    revisions: EndpointRevisions
    sweep: Sweep
    file: ResultFile
    usd_per_hour: float | None
    usd: float | None
    seconds: float

    @property
    def spent(self) -> float:
        """USD of the earlier runs that this one continues."""
        return self.file.result.spent_usd or 0.0

    @property
    def default_limit(self) -> float | None:
        """USD in all that the sweep may cost without another limit; ``None`` in the sandbox, which
        is free, and for an unknown price."""
        if self.usd is None or self.revisions.aws.scope == SANDBOX:
            return None
        return self.spent + LIMIT * self.usd

    @property
    def plan_to_return_to(self) -> Path | None:
        """The file of the plan that the endpoint had before, while it has another."""
        kept = kept_plan(self.revisions.record)
        return kept if kept.exists() else None

    def run(
        self, max_cost: float | None, observe: Callable[[SweepProgress], object]
    ) -> BenchResult:
        """Measure what is missing, then update the endpoint to what it was before; also when
        ``max_cost`` (USD of all runs that measured for the file, by default ``default_limit``)
        allows no further row, which raises BudgetExceeded.

        After another error or an interrupt the endpoint stays as it is.
        """
        if max_cost is not None and self.usd_per_hour is None:
            raise UserError(
                f"the price of {self.revisions.record.name} is unknown, so that no cost can be "
                "limited",
                "omit --max-cost",
                "price-unknown",
            )
        start_seconds = self.revisions.start_seconds
        budget = Budget(
            self.default_limit if max_cost is None else max_cost,
            self.usd_per_hour,
            start_factor=2.0,
            before=self.spent,
            end_seconds=start_seconds,
        )
        try:
            result = self.sweep.run(
                self.file, self.revisions.opened, observe, budget, start_seconds
            )
            self._restore(budget)
        except BudgetExceeded:
            self._restore(budget)
            raise
        finally:
            self.file.spend(budget.spent)
        return replace(result, spent_usd=self.file.result.spent_usd)

    def _restore(self, budget: Budget) -> None:
        begun = time.monotonic()
        self.revisions.restore()
        budget.started(time.monotonic() - begun)


def sweep_on_endpoint(
    request: SweepRequest,
    path: Path,
    aws: Aws,
    record: Deployment,
    catalog: Catalog,
    observe: Observer,
) -> EndpointSweep:
    """Prepare a sweep on a deployment; nothing is changed yet. Every row is kept in ``path``.

    Raises SenderMissing, and UserError for a deployment whose plan has no drafter, and for an
    acceptance to impose on engines of the sandbox.
    """
    if aws.scope == SANDBOX:
        _refuse_imposed(request, "omit --impose-acceptance, or --sandbox")
    sender = aiperf.load_sender()
    before = plan_before(record)
    sweep, plan_of = make_sweep(request, lambda setting: plan_with(before, setting))
    for setting in sweep.settings:
        plan_of(setting)
    target = target_of_endpoint(aws, record.name, record, catalog)
    usd_per_hour = before.price_per_hour_usd
    fresh = replace(
        _fresh(request, replace(target.facts, pair=before.pair), sender),
        usd_per_hour=target.usd_per_hour,
        price_source=target.price_source,
    )
    file = ResultFile.continued(path, fresh, request.again)
    revisions = EndpointRevisions(aws, record, before, plan_of, catalog, sender, observe)
    starts, rows = sweep.seconds(file.result.rows, revisions.start_seconds)
    starts += revisions.start_seconds if starts else 0.0  # the update to what it was before
    cost = Budget(None, usd_per_hour, start_factor=2.0).cost(starts, rows)
    usd = cost if usd_per_hour is not None else None
    return EndpointSweep(revisions, sweep, file, usd_per_hour, usd, starts + rows)


def _refuse_imposed(request: SweepRequest, fix: str) -> None:
    """Raise UserError if the request imposes an acceptance: vLLM's sampler for CPUs cannot."""
    if request.acceptance:
        message = "the CPU engine cannot impose an acceptance"
        raise UserError(message, fix, "imposes-on-gpu-only")


def _fresh(request: SweepRequest, server: BenchedServer, sender: Aiperf) -> BenchResult:
    return BenchResult(
        server=server,
        started=utc_now(),
        toolkit=__version__,
        sender=sender.identity,
        host=this_host(),
        command=request.command,
        rows=(),
        usd_per_hour=request.usd_per_hour,
        price_source="given" if request.usd_per_hour else None,
    )


def save_evidence(result: BenchResult, folder: Path) -> Path:
    """Write the result as evidence to the catalogue in ``folder``, which is made if needed; returns
    the path. The same rows again change nothing; other evidence keeps its file.

    Raises UserError for a result that is not evidence, and OSError.
    """
    document = evidence_document(result)
    text = evidence_text(document).encode()
    name = Path(evidence_name(document))
    (folder / "evidence").mkdir(parents=True, exist_ok=True)
    for path in _paths(folder / "evidence", name):
        if not path.exists():
            write_file(path, text)
            return path
        if path.read_bytes().partition(_ROWS)[2] == text.partition(_ROWS)[2]:
            return path
    raise AssertionError("there is always another name")


def _paths(folder: Path, name: Path) -> Iterable[Path]:
    yield folder / name
    number = 2
    while True:
        yield folder / f"{name.stem}-{number}{name.suffix}"
        number += 1
