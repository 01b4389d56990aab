"""A budget also pays for extra instances: updates, proofs, comparisons. And the
cost so far follows what was started and ended."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.aws.cloud import START
from tests.unit.cli.commands import NAME, Terminal, without_record
from tests.unit.cli.test_budget import dollars
from tests.unit.cli.test_limits import DEPLOY, HOUR, end_of, endpoint_arn, status

WITH = ("compare", NAME, "--with", "tiny --no-speculation", "--yes")


@pytest.fixture
def budgeted(terminal: Terminal) -> Terminal:
    """Deployed with a budget for 12 hours of one instance, two hours ago."""
    terminal.cloud.quotas["ml.g5.xlarge for endpoint usage"] = 8
    done = terminal.run(*DEPLOY, "--budget", str(12 * dollars()))
    assert done.code == 0, done.err
    terminal.cloud.now = START + 2 * HOUR
    return terminal


def ends_at(terminal: Terminal, operation: str, after: float = 0) -> Callable[[], list[float]]:
    """The end whenever the operation is called; ``after`` seconds pass then."""
    found: list[float] = []

    def look(called: str) -> None:
        if called == operation:
            found.append(end_of(terminal))
            terminal.cloud.now += after

    terminal.cloud.before = look
    return lambda: found


@pytest.mark.thorough
def test_an_update_shortens_the_end_by_what_it_may_take_and_then_by_what_it_took(
    budgeted: Terminal,
) -> None:
    ends = ends_at(budgeted, "update_endpoint", after=HOUR / 2)

    done = budgeted.run(*DEPLOY, "--k", "3")

    assert done.code == 0, done.err
    assert START + 8 * HOUR < ends()[0] < START + 11.4 * HOUR
    # One more instance ran for half an hour, and some minutes.
    assert end_of(budgeted) == pytest.approx(START + 11.5 * HOUR, abs=300)
    assert float(budgeted.cloud.tags[endpoint_arn()]["peagle:budget-extra"]) == pytest.approx(
        dollars() / 2, rel=0.2
    )


@pytest.mark.thorough
@pytest.mark.parametrize("elsewhere", [False, True])
def test_extra_instances_that_have_ended_count_to_a_new_budget(
    budgeted: Terminal, elsewhere: bool
) -> None:
    ends_at(budgeted, "update_endpoint", after=HOUR)
    assert budgeted.run(*DEPLOY, "--k", "3").code == 0
    budgeted.cloud.before = lambda operation: None
    if elsewhere:
        without_record(budgeted)

    done = budgeted.run(*DEPLOY, "--k", "3", "--budget", str(24 * dollars()))

    assert done.code == 0, done.err
    assert end_of(budgeted) == pytest.approx(START + 23 * HOUR, abs=300)


@pytest.mark.thorough
@pytest.mark.parametrize("then", ["drop", "promote"])
def test_a_comparison_halves_what_is_left_until_it_ends(budgeted: Terminal, then: str) -> None:
    assert budgeted.run(*WITH).code == 0
    assert end_of(budgeted) == pytest.approx(START + 7 * HOUR, abs=900)
    budgeted.cloud.now = START + 4 * HOUR

    done = budgeted.run(then, NAME, "--yes")

    assert done.code == 0, done.err
    assert end_of(budgeted) == pytest.approx(START + 10 * HOUR, abs=900)
    assert status(budgeted)["cost_so_far_basis"] == "recorded"
    assert status(budgeted)["cost_so_far_usd"] == pytest.approx(6 * dollars(), rel=0.1)


@pytest.mark.thorough
def test_a_budget_that_cannot_be_kept_ends_no_update(budgeted: Terminal) -> None:
    budgeted.cloud.now = START + 11.9 * HOUR
    ends_at(budgeted, "update_endpoint", after=HOUR)

    done = budgeted.run(*DEPLOY, "--k", "3")

    assert done.code == 0, done.err
    assert "the budget is used up" in done.err


@pytest.mark.thorough
def test_without_a_budget_nothing_is_scheduled_again(terminal: Terminal) -> None:
    assert terminal.run(*DEPLOY, "--ttl", "8h").code == 0
    terminal.cloud.calls.clear()

    assert terminal.run(*DEPLOY, "--k", "3").code == 0
    assert terminal.cloud.calls.count("update_schedule") == 1


def test_the_cost_so_far_follows_the_number_of_instances(terminal: Terminal) -> None:
    assert terminal.run(*DEPLOY).code == 0
    terminal.cloud.now = START + 2 * HOUR
    assert terminal.run("scale", NAME, "--to", "3", "--yes").code == 0
    terminal.cloud.now = START + 3 * HOUR

    found = status(terminal)

    assert found["cost_so_far_usd"] == pytest.approx(5 * dollars(), rel=0.05)
    assert found["cost_so_far_basis"] == "recorded"
    assert "so far" in (shown := terminal.run("status", NAME).out)
    assert "about $" not in shown


@pytest.mark.parametrize("reason", ["another client", "another machine", "scaling"])
def test_the_cost_so_far_is_an_estimate_where_the_number_is_not_known(
    terminal: Terminal, reason: str
) -> None:
    words = ("--max-instances", "3") if reason == "scaling" else ()
    assert terminal.run(*DEPLOY, *words).code == 0
    if reason == "another client":
        desired = [{"VariantName": "AllTraffic", "DesiredInstanceCount": 2}]
        terminal.world.aws.call(
            "sagemaker", "update_endpoint_weights_and_capacities",
            EndpointName=NAME, DesiredWeightsAndCapacities=desired,
        )  # fmt: skip
    if reason == "another machine":
        without_record(terminal)
    terminal.cloud.now = START + 2 * HOUR

    assert status(terminal)["cost_so_far_basis"] == "estimate"
    assert "about $" in terminal.run("status", NAME).out
    assert "about " in terminal.run("list").out
