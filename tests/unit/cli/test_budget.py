"""``--budget``: a higher price of the most instances makes the end earlier, however it rises."""

from __future__ import annotations

import pytest

from peagle.deploy.state import utc_text
from tests.unit.aws.cloud import START
from tests.unit.cli.commands import NAME, Terminal, price_of, without_record
from tests.unit.cli.test_limits import DEPLOY, HOUR, assert_ends, end_of, endpoint_arn


@pytest.fixture
def budgeted(terminal: Terminal) -> Terminal:
    """Deployed with a budget for 12 hours of one instance."""
    done = terminal.run(*DEPLOY, "--budget", str(12 * dollars()))
    assert done.code == 0, done.err
    return terminal


def dollars() -> float:
    price = price_of()
    assert price is not None
    return price


SCALING = ("--max", "3", "--target-concurrency", "4")


@pytest.mark.thorough
@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize(
    "words",
    [
        (*DEPLOY, "--max-instances", "3"),
        (*DEPLOY, "--k", "3", "--instance-count", "3"),
        ("scale", NAME, *SCALING, "--yes"),
        ("scale", NAME, "--to", "3", "--yes"),
    ],
)
def test_a_higher_price_moves_the_end_of_a_budget(
    budgeted: Terminal, words: tuple[str, ...], elsewhere: bool
) -> None:
    if elsewhere:
        without_record(budgeted)

    done = budgeted.run(*words)

    assert done.code == 0, done.err
    assert end_of(budgeted) == pytest.approx(START + 4 * HOUR, abs=900)
    assert_ends(budgeted, utc_text(end_of(budgeted)))


@pytest.mark.thorough
def test_a_lower_price_does_not_move_the_end_of_a_budget(terminal: Terminal) -> None:
    many = (*DEPLOY, "--max-instances", "3")
    assert terminal.run(*many, "--budget", str(12 * dollars())).code == 0
    end = end_of(terminal)

    assert terminal.run(*DEPLOY).code == 0
    assert end_of(terminal) == end
    assert terminal.run("scale", NAME, "--to", "1", "--yes").code == 0
    assert end_of(terminal) == end


@pytest.mark.thorough
def test_a_later_time_ends_the_budget(budgeted: Terminal) -> None:
    assert budgeted.run(*DEPLOY, "--ttl", "48h").code == 0
    end = end_of(budgeted)

    assert budgeted.run(*DEPLOY, "--max-instances", "3").code == 0
    assert end_of(budgeted) == end
    assert budgeted.cloud.tags[endpoint_arn()]["peagle:budget"] == "none"


@pytest.mark.thorough
def test_a_new_budget_counts_the_bounds_that_scale_has_set(budgeted: Terminal) -> None:
    assert budgeted.run("scale", NAME, *SCALING, "--yes").code == 0

    assert budgeted.run(*DEPLOY, "--budget", str(24 * dollars())).code == 0
    assert end_of(budgeted) == pytest.approx(START + 8 * HOUR, abs=900)


@pytest.mark.thorough
def test_a_budget_counts_the_instances_that_scale_has_set(terminal: Terminal) -> None:
    assert terminal.run(*DEPLOY).code == 0
    assert terminal.run("scale", NAME, "--to", "3", "--yes").code == 0

    done = terminal.run(*DEPLOY, "--budget", str(12 * dollars()))

    assert done.code == 0, done.err
    assert end_of(terminal) == pytest.approx(START + 4 * HOUR, abs=900)
    assert "deleted after 4h 00m" in done.err


@pytest.mark.thorough
def test_a_budget_counts_the_plan_where_the_update_ends_what_scale_has_set(
    terminal: Terminal,
) -> None:
    assert terminal.run(*DEPLOY).code == 0
    assert terminal.run("scale", NAME, "--to", "3", "--yes").code == 0

    assert terminal.run(*DEPLOY, "--k", "3", "--budget", str(12 * dollars())).code == 0
    assert end_of(terminal) == pytest.approx(START + 12 * HOUR, abs=900)


@pytest.mark.thorough
def test_a_higher_price_counts_the_budget_from_then_on(budgeted: Terminal) -> None:
    budgeted.cloud.now = START + 6 * HOUR

    done = budgeted.run("scale", NAME, "--to", "3", "--yes")

    assert done.code == 0, done.err
    assert end_of(budgeted) == pytest.approx(START + 10 * HOUR, abs=900)
    assert f"ends        {utc_text(end_of(budgeted))}: $" in done.err
