"""A sweep as the user asks for it: its settings and loads, where it runs, and what it writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from peagle import __version__
from peagle.aws.client import Aws
from peagle.bench import aiperf
from peagle.bench.acceptance_file import rates_of, read_acceptance, with_imposed_acceptance
from peagle.bench.bench import this_host
from peagle.bench.evidence import evidence_document, evidence_name, evidence_text
from peagle.bench.local import LocalEngines, local_server
from peagle.bench.models import BenchedServer, BenchResult, BenchSetting, utc_now
from peagle.bench.prices import Budget, BudgetExceeded
from peagle.bench.revisions import EndpointRevisions, kept_plan, plan_before, plan_with
from peagle.bench.sender import LoadSender
from peagle.bench.sweep import ResultFile, Sweep, SweepProgress, parse_settings
from peagle.bench.sweep_lossless import SweepLossless
from peagle.bench.targets import target_of_endpoint
from peagle.bench.workloads import find_workload, make_load
from peagle.catalog.schema import Catalog
from peagle.deploy.context import Observer
from peagle.deploy.state import Deployment
from peagle.engine.local import StepProgress
from peagle.engine.runner import LocalOptions
from peagle.errors import OptionMissing, UserError
from peagle.planning.plan import Plan
from peagle.store import SANDBOX, write_file

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


def _fresh(request: SweepRequest, server: BenchedServer, sender: LoadSender) -> BenchResult:
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
