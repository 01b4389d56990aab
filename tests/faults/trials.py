"""One trial: a command meets a fault, and afterwards nothing is lost and a rerun converges.

operation   every AWS operation that the command calls without faults
fault       an answer of AWS (access denied, throttling, 500), a lost connection before or after
            the effect, a late answer; once or always; or the command is killed before or after
then        every resource that exists is shown by `peagle status`; `peagle list` reports what
            the account costs, also while an endpoint is being created; the same command, without
            faults, ends as it would have: the endpoint serves the right K, proved, and the
            deployment is this toolkit's; destroy leaves nothing
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from botocore.client import BaseClient

from peagle.aws import client
from peagle.sandbox.rehearsal import add_fault, clear_faults, list_faults
from tests.faults.account import NAME, Inventory, Resources
from tests.sandbox.sandboxes import Sandbox
from tests.support import Done, in_process

DEPLOY = ("deploy", "tiny", "--instance-type", "ml.g5.xlarge", "--yes")
UPDATE = (*DEPLOY, "--k", "3")
_SANDBOX = ("--sandbox", "--json")

FAULTS = ("access-denied", "throttling", "internal-error", "reset-before", "answer-lost", "timeout")
KILLS = ("killed-before", "killed-after")
_TIMEOUTS = (2, 2, 2)
"""Attempts, and seconds to connect and read: a late answer of a trial comes after more."""
_LATE_SECONDS = 3.0


@dataclass(frozen=True)
class Scenario:
    """``before`` are the commands that make the initial state, ``command`` meets the fault.
    ``by_script``: a rendered script has deployed the pair before. ``k`` is what the endpoint serves
    at the end; ``None`` when there is none."""

    name: str
    command: tuple[str, ...]
    before: tuple[tuple[str, ...], ...] = ()
    by_script: bool = False
    k: int | None = 5

    @property
    def is_toggle(self) -> bool:
        """Whether the command, repeated after success, goes back to the state before."""
        return self.command[0] == "rollback"


SCENARIOS = (
    Scenario("deploy", DEPLOY),
    Scenario("update", UPDATE, (DEPLOY,), k=3),
    Scenario("rollback", ("rollback", NAME, "--yes"), (DEPLOY, UPDATE)),
    Scenario("adopt", ("adopt", NAME, "--yes"), by_script=True),
    Scenario("destroy", ("destroy", NAME, "--yes"), (DEPLOY,), k=None),
)


@dataclass(frozen=True)
class Trial:
    """``operation`` such as ``sagemaker:CreateModel``; ``times`` is 1 or ``None`` (always)."""

    scenario: Scenario
    operation: str
    fault: str
    times: int | None

    @property
    def name(self) -> str:
        often = "once" if self.times else "always"
        return f"{self.scenario.name}/{self.operation}/{self.fault}/{often}"


class Broken(AssertionError):
    """A promise that a trial broke."""


class Trials:
    """Runs trials in one sandbox with a stub engine."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.inventory = Inventory(sandbox)
        self._empty = self.inventory.resources()

    def operations(self, scenario: Scenario) -> list[str]:
        """The operations that the scenario's command calls, in the order of the first call."""
        self._prepare(scenario)
        seen: dict[str, None] = {}
        with _on_call(before=lambda operation: seen.setdefault(operation)):
            self._expect_success(scenario.command)
        self._clean_up()
        return list(seen)

    def run(self, trial: Trial) -> None:
        """Raise Broken with the promise that does not hold."""
        self._prepare(trial.scenario)
        try:
            met = self._meet(trial)
            self._cost_is_right(trial)
            self._nothing_is_lost(trial)
            if not (trial.scenario.is_toggle and met and met.code == 0):
                self._expect_success(trial.scenario.command)
            self._is_complete(trial)
            self._clean_up()
        except Broken:
            self.inventory.remove_everything()
            raise

    def _prepare(self, scenario: Scenario) -> None:
        if scenario.by_script:
            self.inventory.deploy_by_script()
        for command in scenario.before:
            self._expect_success(command)

    def _meet(self, trial: Trial) -> Done | None:
        """Run the command with the fault; ``None`` when it was killed."""
        if trial.fault in KILLS:
            _killed(lambda: self._peagle(trial.scenario.command), trial)
            return None
        with self.sandbox.at_home(), _short_timeouts():
            add_fault(trial.operation, trial.fault, trial.times, seconds=_LATE_SECONDS)
        try:
            with _short_timeouts():
                return self._peagle(trial.scenario.command)
        finally:
            with self.sandbox.at_home():
                met = any(fault.seen for fault in list_faults())
                clear_faults()
            if not met:
                raise Broken(f"{trial.name}: the command does not call the operation")

    def _nothing_is_lost(self, trial: Trial) -> None:
        """Every resource is shown, and the reported cost is the account's."""
        self.inventory.wait_until_stable()
        existing = self.inventory.resources() - self._empty
        lost = existing - self._shown()
        if lost:
            raise Broken(f"{trial.name}: exists, and is not shown: {sorted(lost)}")
        self._cost_is_right(trial)

    def _cost_is_right(self, trial: Trial) -> None:
        """The reported cost is the account's. What changes meanwhile is compared once it is stable.

        A temporary endpoint that the update's proof uses counts like any other.
        """
        before = self.inventory.states()
        actual = self.inventory.usd_per_hour()
        listed = self._peagle(("list",)).document["deployments"]
        reported = round(sum(row["price_per_hour_usd"] or 0.0 for row in listed), 4)
        if reported != actual and self.inventory.states() == before:
            raise Broken(f"{trial.name}: costs ${actual} per hour, reported as ${reported}")

    def _shown(self) -> Resources:
        done = self._peagle(("status", NAME))
        if done.code:
            return frozenset()
        shown = {(one["type"], one["name"]) for one in done.document["resources"]}
        buckets = {
            (kind, name.removeprefix("s3://").partition("/")[0])
            for kind, name in shown
            if kind == "S3Objects"
        }
        used = {("S3Bucket", name) for _, name in buckets}
        return frozenset(shown | buckets | used)

    def _is_complete(self, trial: Trial) -> None:
        """What the account serves, and what ``status`` says about it, is the command's result."""
        self.inventory.wait_until_stable()
        endpoints = [one["EndpointName"] for one in self.inventory.endpoints()]
        expected = trial.scenario.k
        if endpoints != ([] if expected is None else [NAME]):
            raise Broken(f"{trial.name}: after the rerun there are the endpoints {endpoints}")
        if expected is None:
            return
        served = self.inventory.served_k(NAME)
        if served != expected:
            raise Broken(f"{trial.name}: after the rerun K is {served} instead of {expected}")
        shown = self._peagle(("status", NAME)).document
        proved = trial.scenario.command[0] != "adopt"  # which proves nothing
        state = "InService" if proved else "Unproved"
        right = {"state": state, "proved": proved, "k": expected, "owner": "peagle"}
        wrong = {key: shown[key] for key, value in right.items() if shown[key] != value}
        if wrong:
            raise Broken(f"{trial.name}: after the rerun status says {wrong} instead of {right}")

    def _clean_up(self) -> None:
        self._expect_success(("destroy", NAME, "--yes"))
        left = self.inventory.resources() - self._empty
        of_script = {(kind, name) for kind, name in left if "template" in name}
        if left - of_script:
            raise Broken(f"destroy left {sorted(left)}")
        self.inventory.remove_everything()

    def _expect_success(self, command: tuple[str, ...]) -> None:
        done = self._peagle(command)
        if done.code:
            raise Broken(f"peagle {' '.join(command)} ended with {done.code}: {done.error}")

    def _peagle(self, command: tuple[str, ...]) -> Done:
        return in_process(*command, *_SANDBOX, environment=self.sandbox.environment)


def trials_of(scenario: Scenario, operations: list[str]) -> Iterator[Trial]:
    """Every operation with every fault, once and always, and killed before and after it."""
    for operation in operations:
        for fault in FAULTS:
            for times in (1, None):
                yield Trial(scenario, operation, fault, times)
        for kill in KILLS:
            yield Trial(scenario, operation, kill, 1)


@contextmanager
def _on_call(
    before: Callable[[str], object] = lambda operation: None,
    after: Callable[[str], object] = lambda operation: None,
) -> Iterator[None]:
    """Call ``before`` and ``after`` around every call of boto3 in this process."""
    make = BaseClient._make_api_call

    def observed(self: Any, operation_name: str, parameters: Any) -> Any:
        model = self.meta.service_model
        operation = f"{model.signing_name}:{operation_name}"
        before(operation)
        answer = make(self, operation_name, parameters)
        after(operation)
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BaseClient, "_make_api_call", observed)
        yield


@contextmanager
def _short_timeouts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "_TIMEOUTS", _TIMEOUTS)
        patch.setattr(client, "_TIMEOUTS_BY_SERVICE", {})
        yield


def _killed(run: Callable[[], object], trial: Trial) -> None:
    """Run in a process that is killed at the first call of the trial's operation."""

    def die(operation: str) -> None:
        if operation == trial.operation:
            os.kill(os.getpid(), signal.SIGKILL)

    def body() -> None:
        moment = "before" if trial.fault == "killed-before" else "after"
        with _on_call(**{moment: die}):
            run()

    process = multiprocessing.get_context("fork").Process(target=body)
    process.start()
    process.join()
    if process.exitcode != -signal.SIGKILL:
        raise Broken(f"{trial.name}: ended with {process.exitcode} instead of being killed")
