"""A fake account, a clock that advances only in pauses, and deploy as the command line calls it."""

from dataclasses import dataclass, field
from typing import Any

from peagle.aws.client import Clock
from peagle.aws.sagemaker import describe
from peagle.catalog import load_catalog
from peagle.catalog.schema import Catalog
from peagle.deploy import records
from peagle.deploy.apply import deploy, remove_previous, rollback
from peagle.deploy.comparison import drop, promote, require_comparable, start_comparison
from peagle.deploy.context import DeploymentContext, Progress
from peagle.deploy.discover import current_deployment
from peagle.deploy.preflight import Preflight, preflight
from peagle.deploy.proving import prove, record_proof
from peagle.deploy.removal import destroy
from peagle.deploy.state import Deployment, Resource
from peagle.deploy.status import decide_state
from peagle.planning.plan import Plan
from peagle.proof import Proof
from tests.unit.aws.cloud import Cloud, FakeAws

NAME = "peagle-pair"
READING = ("batch_get", "describe", "filter", "get", "head", "list", "simulate")
"""How the names of operations that change nothing begin."""


class CloudClock(Clock):
    """The cloud's time, which passes only during a pause."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud

    def now(self) -> float:
        return self._cloud.now

    def sleep(self, seconds: float) -> None:
        self._cloud.now += seconds


@dataclass
class World:
    cloud: Cloud = field(default_factory=Cloud)
    shown: list[Progress] = field(default_factory=list)
    catalog: Catalog = field(default_factory=load_catalog)

    def __post_init__(self) -> None:
        self.aws = FakeAws(self.cloud)

    @property
    def clock(self) -> Clock:
        return CloudClock(self.cloud)

    def context(self, record: Deployment | None = None) -> DeploymentContext:
        """What a command works with, by default on what the account has now."""
        return DeploymentContext(self.aws, record or self.current(), self.shown.append, self.clock)

    def preflight(self, plan: Plan, **choices: Any) -> Preflight:
        return preflight(self.aws, plan, self.catalog.instances, **choices)

    def deploy(
        self, plan: Plan, *, keep_unproved: bool = False, wait: bool = True, **choices: Any
    ) -> Deployment:
        checked = self.preflight(plan, **choices)
        context = self.context(checked.record or self.new(plan.name))
        return deploy(context, checked, wait, keep_unproved=keep_unproved)

    def new(self, name: str) -> Deployment:
        """The record of a deployment that does not exist yet."""
        aws = self.aws
        return Deployment(name=name, scope=aws.scope, account=aws.account, region=aws.region)

    def rollback(self) -> Deployment:
        return rollback(self.context(), self.catalog)

    def prove(self, **choices: Any) -> Proof:
        """Prove what serves again, and record that."""
        proof, revision = prove(
            self.aws, NAME, load_catalog(), self.saved(), clock=self.clock, **choices
        )
        if revision:
            record_proof(self.context(), revision)
        return proof

    def remove_previous(self) -> tuple[Resource, ...]:
        return remove_previous(self.context())

    def compare(self, plan: Plan, share: float = 0.1) -> Deployment:
        check = self.preflight(plan, as_candidate=True)
        return start_comparison(self.context(require_comparable(check)), check, share, self.catalog)

    def promote(self) -> Deployment:
        return promote(self.context(), self.catalog)

    def drop(self) -> Deployment:
        return drop(self.context(), self.catalog)

    def forget(self) -> None:
        """Continue as another machine does, without the record."""
        records.remove_record(self.saved())

    def current(self) -> Deployment:
        record = current_deployment(self.aws, NAME, self.record())
        assert record is not None
        return record

    def serves(self) -> str:
        """The configuration of the endpoint."""
        return self.cloud.endpoints[NAME].endpoint_config_name

    def record(self) -> Deployment | None:
        return records.load_record(self.aws.scope, "us-east-1", NAME)

    def saved(self) -> Deployment:
        """The record, which must exist."""
        record = self.record()
        assert record is not None
        return record

    def state(self) -> str:
        """What ``peagle status`` shows as the endpoint's state."""
        return decide_state(self.saved(), describe(self.aws, NAME))

    def destroy(self) -> None:
        record = self.record()
        if record:
            destroy(self.context(record))
