"""A cloud, a clock that passes only when waited for, and deploy as the command line calls it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.unit.aws.cloud import Cloud, FakeAws
from toolkit.aws import records
from toolkit.aws.deployment import deploy
from toolkit.aws.destruction import destroy
from toolkit.aws.preflight import Choices, Preflight, preflight
from toolkit.aws.records import Deployment
from toolkit.aws.watch import Clock, Progress
from toolkit.aws.work import Work
from toolkit.local.crash import find_crash
from toolkit.planning.models import Plan

NAME = "peagle-pair"


def _explain(log: Sequence[str]) -> tuple[str, str]:
    crash = find_crash(log)
    return crash.line, crash.fix


class CloudClock(Clock):
    """The cloud's time, which passes only when somebody waits."""

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

    def __post_init__(self) -> None:
        self.aws = FakeAws(self.cloud)

    @property
    def clock(self) -> Clock:
        return CloudClock(self.cloud)

    def work(self, record: Deployment) -> Work:
        return Work(self.aws, record, self.shown.append, _explain, self.clock)

    def look(self, plan: Plan, **choices: Any) -> Preflight:
        return preflight(self.aws, plan, Choices(**choices))

    def deploy(self, plan: Plan, **choices: Any) -> Deployment:
        found = self.look(plan, **choices)
        record = found.record or Deployment(
            name=plan.name, scope=self.aws.scope, account=self.aws.account, region=plan.region
        )
        work = self.work(record)
        deploy(work, found.change, found.wanted)
        return work.record

    def record(self) -> Deployment | None:
        return records.load(self.aws.scope, "us-east-1", NAME)

    def destroy(self) -> None:
        record = self.record()
        if record:
            destroy(self.work(record))
