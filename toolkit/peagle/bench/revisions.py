"""A sweep on a deployment: each setting is an update of its endpoint, which is proved and measured.

Afterwards the endpoint is updated to the plan that it had before. That plan is kept in a file until
then, so that an interrupted sweep can be continued, or undone with ``peagle deploy FILE``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from peagle.aws.client import Aws
from peagle.bench.measure import measure_of
from peagle.bench.models import BenchSetting
from peagle.bench.sender import LoadSender
from peagle.bench.sweep import Measure
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
    sender: LoadSender
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
