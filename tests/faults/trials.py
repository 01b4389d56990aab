"""One trial: a command meets a fault, and afterwards nothing is lost and a rerun converges.

operation   every AWS operation that the command calls without faults, and the writes of its record
fault       an answer of AWS (access denied, throttling, 500), a lost connection before or after
            the effect, a late answer; once or always; or the command is killed before or after
            any call
then        every resource that exists is shown by `peagle status`; `peagle list` reports what
            the account costs, also while an endpoint is being created; the same command, without
            faults, ends as it would have: the endpoint serves the right K, proved, and the
            deployment is this toolkit's; destroy leaves nothing
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from tests.faults.account import INSTANCE_TYPE, NAME
from tests.faults.calls import RECORD, on_call
from tests.faults.commands import FAULTS, KILLS, LOW, STUCK, Broken, Commands, Fault
from tests.sandbox.sandboxes import Sandbox

DEPLOY = ("deploy", "tiny", "--instance-type", INSTANCE_TYPE, "--yes")
UPDATE = (*DEPLOY, "--k", "3")
OTHER_TYPE = "ml.g6.xlarge"
_POLLED = ("sagemaker:DescribeEndpoint", "logs:FilterLogEvents")
_POLLS = 4
"""Of what is polled, the command is killed at so many calls; of anything else at every call."""


@dataclass(frozen=True)
class Scenario:
    """``before`` are the commands that make the initial state, ``command`` meets the fault.

    ``k`` is what the endpoint serves at the end; ``None`` when there is none. ``code`` is how the
    command ends without faults. ``acceptance`` is that of the engines it starts; with ``scarce``
    there is no instance of the planned type. ``meanwhile`` are faults beside that of a trial.
    """

    name: str
    command: tuple[str, ...]
    before: tuple[tuple[str, ...], ...] = ()
    k: int | None = 7
    code: int = 0
    acceptance: str = ""
    scarce: bool = False
    proved: bool = True
    meanwhile: tuple[Fault, ...] = ()

    @property
    def is_toggle(self) -> bool:
        """Whether the command goes back to the state before, repeated after its success."""
        return self.command[0] == "rollback"


SCENARIOS = (
    Scenario("deploy", DEPLOY),
    Scenario("update", UPDATE, (DEPLOY,), k=3),
    Scenario("rollback", ("rollback", NAME, "--yes"), (DEPLOY, UPDATE)),
    Scenario("destroy", ("destroy", NAME, "--yes"), (DEPLOY,), k=None),
    Scenario("not-proved", DEPLOY, code=3, acceptance=LOW, proved=False),
    Scenario("not-proved-update", UPDATE, (DEPLOY,), code=3, acceptance=LOW),
    Scenario("fallback", (*DEPLOY, "--fallback-instance-types", OTHER_TYPE), scarce=True),
    Scenario(
        "stuck",
        DEPLOY,
        meanwhile=(
            Fault("sagemaker:CreateEndpoint", STUCK, times=None),
            Fault("logs:FilterLogEvents", "interrupted-before", 3),
        ),
    ),
)


@dataclass(frozen=True)
class Trial:
    scenario: Scenario
    fault: Fault

    @property
    def name(self) -> str:
        return f"{self.scenario.name}/{self.fault.name}"


class Trials:
    """Runs trials in one sandbox with a stub engine."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.commands = Commands(sandbox)
        self.inventory = self.commands.inventory

    def calls(self, scenario: Scenario) -> Counter[str]:
        """How often the scenario's command calls each operation, in the order of the first call."""
        self._prepare(scenario)
        seen: Counter[str] = Counter()
        with (
            self._conditions(scenario),
            on_call(before=lambda operation, call: seen.update([operation])),
        ):
            if scenario.meanwhile:
                self.commands.with_faults(scenario.command, scenario.meanwhile)
            else:
                self._expect_end(scenario)
        self._clean_up()
        return seen

    def run(self, trial: Trial) -> None:
        """Raise Broken with the promise that does not hold."""
        scenario = trial.scenario
        try:
            self._prepare(scenario)
            with self._conditions(scenario):
                self._meet(trial)
                if scenario.meanwhile:
                    self.commands.cost_is_right()
            self.commands.cost_is_right()
            self.commands.nothing_is_lost()
            if not (scenario.is_toggle and self._is_done(scenario)):
                with self._conditions(scenario):
                    self._expect_end(scenario)
            self._is_complete(scenario)
            self._clean_up()
        except Broken as error:
            self.inventory.remove_everything()
            raise Broken(f"{trial.name}: {error}") from error

    def _conditions(self, scenario: Scenario) -> AbstractContextManager[None]:
        return self.commands.conditions(
            scenario.acceptance, INSTANCE_TYPE if scenario.scarce else ""
        )

    def _prepare(self, scenario: Scenario) -> None:
        for command in scenario.before:
            self.commands.expect_success(command)

    def _meet(self, trial: Trial) -> None:
        fault = trial.fault
        faults = (*trial.scenario.meanwhile, fault)
        done = self.commands.with_faults(trial.scenario.command, faults)
        met = done is None if fault.kind in KILLS else self.commands.has_met(fault)
        if not met and fault.call == 1:
            raise Broken("the command does not call the operation")

    def _is_done(self, scenario: Scenario) -> bool:
        try:
            self._is_complete(scenario)
        except Broken:
            return False
        return True

    def _expect_end(self, scenario: Scenario) -> None:
        done = self.commands.peagle(scenario.command)
        if done.code != scenario.code:
            raise Broken(f"{scenario.name} ended with {done.code}: {done.error}")

    def _is_complete(self, scenario: Scenario) -> None:
        """What the account serves, and what ``status`` says about it, is the command's result."""
        self.inventory.wait_until_stable()
        endpoints = [endpoint["EndpointName"] for endpoint in self.inventory.endpoints()]
        expected = scenario.k
        if endpoints != ([] if expected is None else [NAME]):
            raise Broken(f"after the rerun there are the endpoints {endpoints}")
        if expected is None:
            return
        served = self.inventory.served_k(NAME)
        if served != expected:
            raise Broken(f"after the rerun K is {served} instead of {expected}")
        shown = self.commands.expect_success(("status", NAME)).document
        right = {
            "state": "InService" if scenario.proved else "Unproved",
            "proved": scenario.proved,
            "k": expected,
            "owner": "peagle",
            "instance_type": OTHER_TYPE if scenario.scarce else INSTANCE_TYPE,
        }
        wrong = {key: shown[key] for key, value in right.items() if shown[key] != value}
        if wrong:
            raise Broken(f"after the rerun status says {wrong} instead of {right}")

    def _clean_up(self) -> None:
        self.commands.expect_success(("destroy", NAME, "--yes"))
        left = self.inventory.resources() - self.commands.empty
        if left:
            raise Broken(f"destroy left {sorted(left)}")
        self.inventory.remove_everything()


def trials_of(scenario: Scenario, calls: Mapping[str, int]) -> Iterator[Trial]:
    """Every operation with every fault, once and always, and killed before and after every call."""
    for operation, count in calls.items():
        if operation != RECORD and not scenario.meanwhile:
            for kind in FAULTS:
                for times in (1, None):
                    yield Trial(scenario, Fault(operation, kind, times=times))
        for call in range(1, (min(count, _POLLS) if operation in _POLLED else count) + 1):
            for kill in KILLS:
                yield Trial(scenario, Fault(operation, kill, call))
