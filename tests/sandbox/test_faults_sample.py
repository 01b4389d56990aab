"""AWS fails in every way: a sample of ``make faults``."""

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest

from tests.faults.commands import FAULTS, KILLS, Fault
from tests.faults.trials import SCENARIOS, Trial, Trials
from tests.sandbox.sandboxes import Sandbox, started

pytestmark = pytest.mark.sandbox
DECISIVE = {
    "deploy": ("sagemaker:CreateEndpoint",),
    "update": ("sagemaker:UpdateEndpoint",),
    "rollback": ("sagemaker:UpdateEndpoint",),
    "destroy": ("sagemaker:DeleteEndpoint", "sagemaker:DeleteModel"),
    "not-proved-update": ("sagemaker:InvokeEndpoint",),
    "fallback": ("sagemaker:DeleteEndpoint",),
    "stuck": ("sagemaker:CreateEndpoint",),
}
"""The operations of a scenario that change what exists, or decide what is removed."""


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory, engine: Path) -> Iterator[Trials]:
    place = tmp_path_factory.mktemp("faults")
    with started(Sandbox(place / "home", engine)) as sandbox:
        yield Trials(sandbox)


def _sample() -> list[Trial]:
    """Each decisive operation with a fault or a kill, all kinds in turn."""
    pairs = [(each, operation) for each in SCENARIOS for operation in DECISIVE.get(each.name, ())]
    kinds = (*FAULTS, *KILLS)
    return [
        Trial(scenario, Fault(operation, kind, times=1 if kind in KILLS or turn % 2 else None))
        for turn, ((scenario, operation), kind) in enumerate(zip(pairs, cycle(kinds), strict=False))
    ]


@pytest.mark.exhaustive
@pytest.mark.parametrize("trial", _sample(), ids=lambda trial: trial.name)
def test_nothing_is_lost_and_the_command_can_be_repeated(trials: Trials, trial: Trial) -> None:
    trials.run(trial)


def test_every_kind_of_fault_is_in_the_sample() -> None:
    assert {trial.fault.kind for trial in _sample()} == {*FAULTS, *KILLS}
    assert {trial.scenario.name for trial in _sample()} == {*DECISIVE}
