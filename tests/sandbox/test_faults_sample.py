"""AWS fails in every way: a sample of ``make faults`` of about two minutes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.trials import FAULTS, KILLS, SCENARIOS, Scenario, Trial, Trials
from tests.sandbox.sandboxes import Sandbox, started

pytestmark = pytest.mark.sandbox

DECISIVE = {
    "deploy": ("s3:CreateBucket", "sagemaker:CreateModel", "sagemaker:CreateEndpoint"),
    "update": ("sagemaker:CreateEndpointConfig", "sagemaker:UpdateEndpoint"),
    "rollback": ("sagemaker:UpdateEndpoint",),
    "adopt": ("sagemaker:AddTags",),
    "destroy": ("sagemaker:DeleteEndpoint", "sagemaker:ListTags"),
}
"""The operations of a scenario that change what exists, or decide what is removed."""


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory, engine: Path) -> Iterator[Trials]:
    place = tmp_path_factory.mktemp("faults")
    with started(Sandbox(place / "home", engine)) as sandbox:
        yield Trials(sandbox)


def _sample() -> Iterator[Trial]:
    """Each decisive operation with two faults or kills, all kinds in turn."""
    kinds = (*FAULTS, *KILLS)
    turn = 0
    for scenario in SCENARIOS:
        for operation in DECISIVE[scenario.name]:
            for _ in range(2):
                kind = kinds[turn % len(kinds)]
                yield Trial(scenario, operation, kind, 1 if kind in KILLS or turn % 2 else None)
                turn += 1


@pytest.mark.parametrize("trial", list(_sample()), ids=lambda trial: trial.name)
def test_nothing_is_lost_and_the_command_can_be_repeated(trials: Trials, trial: Trial) -> None:
    trials.run(trial)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_decisive_operations_are_called(trials: Trials, scenario: Scenario) -> None:
    assert set(DECISIVE[scenario.name]) <= set(trials.operations(scenario))
