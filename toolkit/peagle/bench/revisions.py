"""A sweep on a deployment: each setting is an update of its endpoint, which is proved and measured.

Afterwards the endpoint is updated to the plan that it had before. That plan is kept in a file until
then, so that an interrupted sweep can be continued, or undone with ``peagle deploy FILE``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from peagle.aws.client import Aws
from peagle.bench import aiperf
from peagle.bench.aiperf import Aiperf
from peagle.bench.measure import Measure, measure_of, new_result
from peagle.bench.result import BenchResult, BenchSetting
from peagle.bench.sweep import (
    Budget,
    BudgetExceeded,
    PlanOf,
    ResultFile,
    Sweep,
    SweepProgress,
    SweepRequest,
    make_sweep,
)
from peagle.bench.targets import target_of_endpoint
from peagle.catalog.schema import Catalog
from peagle.deploy.apply import deploy
from peagle.deploy.context import Observer
from peagle.deploy.preflight import preflight
from peagle.deploy.records import find_record
from peagle.deploy.state import Deployment
from peagle.errors import Fix, Refused, UserError
from peagle.findings import errors
from peagle.planning.plan import Plan
from peagle.planning.speculation import with_speculation, without_floor
from peagle.render.plan_file import plan_bytes, read_plan
from peagle.store import SANDBOX, home, private_folder, write_file

START_SECONDS = 600.0
"""How long an update takes, for the price before one is measured."""

SANDBOX_START_SECONDS = 60.0
"""The same in the sandbox."""

LIMIT = 1.5
"""Times the shown cost: what a sweep of an endpoint may cost by default."""


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
        request.refuse_imposed()
    sender = aiperf.find_sender()
    before = plan_before(record)
    sweep, plan_of = make_sweep(request, lambda setting: plan_with(before, setting))
    target = target_of_endpoint(aws, record.name, record, catalog)
    fresh = replace(
        new_result(replace(target.facts, pair=before.pair), sender, request.command),
        usd_per_hour=target.usd_per_hour,
        price_source=target.price_source,
    )
    file = ResultFile.continued(path, fresh, request.again)
    start = SANDBOX_START_SECONDS if aws.scope == SANDBOX else START_SECONDS
    starts, rows = sweep.seconds(file.result.rows, start)
    starts += start if starts else 0.0  # the update to what it was before
    hourly = before.price_per_hour_usd
    usd = None if hourly is None else Budget(None, hourly, start_factor=2.0).cost(starts, rows)
    return EndpointSweep(
        aws, record, before, plan_of, catalog, sender, observe, sweep, file, hourly, usd,
        starts + rows, start,
    )  # fmt: skip


@dataclass(frozen=True)
class EndpointSweep:
    """A sweep on a deployment, ready to begin: it updates the endpoint of ``record`` to each
    setting, and back to ``before``.

    ``usd_per_hour`` is of the endpoint as it is; ``usd`` is about what the rest of the sweep costs,
    with the instances of two revisions during each update, the last one too; ``None`` for an
    unknown price. ``file`` is what it continues. ``start_seconds`` is what an update takes, about.
    """

    aws: Aws
    record: Deployment
    before: Plan
    plan_of: PlanOf
    catalog: Catalog
    sender: Aiperf
    observe: Observer
    sweep: Sweep
    file: ResultFile
    usd_per_hour: float | None
    usd: float | None
    seconds: float
    start_seconds: float

    @property
    def spent(self) -> float:
        """USD of the earlier runs that this one continues."""
        return self.file.result.spent_usd or 0.0

    @property
    def default_limit(self) -> float | None:
        """USD in all that the sweep may cost without another limit; ``None`` in the sandbox, which
        is free, and for an unknown price."""
        if self.usd is None or self.aws.scope == SANDBOX:
            return None
        return self.spent + LIMIT * self.usd

    @property
    def plan_to_return_to(self) -> Path | None:
        """The file of the plan that the endpoint had before, while it has another."""
        kept = kept_plan(self.record)
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
                f"the price of {self.record.name} is unknown, so that no cost can be limited",
                "omit --max-cost",
                "price-unknown",
            )
        budget = Budget(
            self.default_limit if max_cost is None else max_cost,
            self.usd_per_hour,
            start_factor=2.0,
            before=self.spent,
            end_seconds=self.start_seconds,
        )
        try:
            result = self.sweep.run(self.file, self.opened, observe, budget, self.start_seconds)
            self._restore(budget)
        except BudgetExceeded:
            self._restore(budget)
            raise
        finally:
            self.file.spend(budget.spent)
        return replace(result, spent_usd=self.file.result.spent_usd)

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
        yield measure_of(replace(target, setting=setting), self.sender)

    def _restore(self, budget: Budget) -> None:
        """Update the endpoint to the plan that it had before. Raises what ``deploy`` raises."""
        if kept := self.plan_to_return_to:
            begun = time.monotonic()
            self._deploy(self.before)
            kept.unlink()
            budget.started(time.monotonic() - begun)

    def _deploy(self, plan: Plan) -> None:
        prepared = preflight(self.aws, plan, self.catalog.instances)
        for first in errors(prepared.findings):
            raise Refused(first.message, Fix(first.fix, tuple(first.command or ())), first.code)
        deploy(self.aws, prepared, self.observe)


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
