"""``peagle deploy`` without capacity: other types, more time, and what was tried."""

from __future__ import annotations

import pytest

from tests.unit.aws.test_capacity import NO_INSTANCE
from tests.unit.cli.commands import FIRST, Terminal, nothing_was_created

FULL = [("Creating", None), ("Failed", NO_INSTANCE)]
OTHERS = ("--fallback-instance-types", "ml.g5.2xlarge,ml.g6.xlarge")
ALL = ("ml.g5.xlarge", "ml.g5.2xlarge", "ml.g6.xlarge")


@pytest.fixture
def full(terminal: Terminal) -> Terminal:
    """An account without a free instance for the first endpoint."""
    for name in (*ALL, "ml.g4dn.xlarge", "ml.g4dn.2xlarge", "ml.g6.2xlarge"):
        terminal.cloud.quotas[f"{name} for endpoint usage"] = 4
    terminal.cloud.next_scripts = [FULL]
    return terminal


def test_yes_alone_does_not_choose_another_type(full: Terminal) -> None:
    done = full.run(*FIRST, "--yes", "--json")
    assert done.code == 4
    assert '"code": "insufficient-capacity"' in done.error
    assert '"tried": [{"instance_type": "ml.g5.xlarge"' in done.error
    assert done.refusal["fix"].endswith("--fallback-instance-types ml.g6.xlarge,ml.g6.2xlarge")
    assert full.cloud.calls.count("create_endpoint") == 1
    assert "Costs    $0.00 per hour" in done.err


@pytest.mark.thorough
def test_the_ranking_is_tried_after_asking(full: Terminal) -> None:
    done = full.succeeds(*FIRST, answers="y\ny\n")
    assert "AWS has no free ml.g5.xlarge now." in done.err
    assert "Try ml.g6.xlarge ($1.13 an hour), ml.g6.2xlarge (" in done.err
    assert full.cloud.calls.count("create_endpoint") == 2


def test_another_type_may_be_declined(full: Terminal) -> None:
    done = full.run(*FIRST, answers="y\nn\n")
    assert done.code == 4
    assert full.cloud.calls.count("create_endpoint") == 1


@pytest.mark.parametrize(
    ("types", "code", "expected"),
    [
        ("ml.g9.xlarge", 2, "no GPU instance type 'ml.g9.xlarge'"),
        (" , ", 2, "names no instance type"),
        ("ml.g6.xlarge,ml.p5.4xlarge", 3, "--max-price-per-hour"),
    ],
)
def test_types_that_cannot_be_used_are_refused_before_anything_is_created(
    terminal: Terminal, types: str, code: int, expected: str
) -> None:
    done = terminal.run(
        *FIRST, "--fallback-instance-types", types, "--max-price-per-hour", "5", "--yes"
    )
    assert done.code == code
    assert expected in done.error
    assert nothing_was_created(terminal)


def test_a_plan_file_has_one_type(terminal: Terminal, tmp_path: object) -> None:
    file = f"{tmp_path}/plan.json"
    assert terminal.run("plan", *FIRST[1:], "--out", file).code == 0
    done = terminal.run("deploy", file, *OTHERS, "--yes")
    assert done.code == 2
    assert "cannot be combined with a plan file" in done.error
