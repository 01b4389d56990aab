"""``--budget``: a higher price of the most instances makes the end earlier, however it rises."""

from __future__ import annotations

import pytest

from peagle.deploy.state import utc_text
from tests.unit.aws.cloud import START
from tests.unit.cli.commands import NAME, Terminal, price_of, without_record
from tests.unit.cli.test_limits import DEPLOY, HOUR, assert_ends, end_of

pytestmark = pytest.mark.thorough

SCALING = "scale --max 3 --target-concurrency 4"


def run(terminal: Terminal, step: str) -> int | None:
    """Deploy or scale; ``$12`` is the price of twelve hours of one instance."""
    command, *words = step.split()
    words = [f"{int(word[1:]) * (price_of() or 0)}" if word[0] == "$" else word for word in words]
    first = DEPLOY if command == "deploy" else (command, NAME, "--yes")
    return terminal.run(*first, *words).code


@pytest.mark.parametrize(
    ("steps", "hours"),
    [
        (["deploy --budget $12", "deploy --max-instances 3"], 4),
        (["deploy --budget $12", "deploy --k 3 --instance-count 3"], 4),
        (["deploy --budget $12", SCALING], 4),
        (["deploy --budget $12", "scale --to 3"], 4),
        (["deploy --max-instances 3 --budget $12", "deploy"], 4),
        (["deploy --max-instances 3 --budget $12", "deploy", "scale --to 1"], 4),
        (["deploy --budget $12", "deploy --ttl 48h", "deploy --max-instances 3"], 48),
        (["deploy --budget $12", SCALING, "deploy --budget $24"], 8),
        (["deploy", "scale --to 3", "deploy --budget $12"], 4),
        (["deploy", "scale --to 3", "deploy --k 3 --budget $12"], 12),
    ],
)
def test_the_end_of_a_budget(terminal: Terminal, steps: list[str], hours: int) -> None:
    assert [run(terminal, step) for step in steps] == [0] * len(steps)
    assert end_of(terminal) == pytest.approx(START + hours * HOUR, abs=900)
    assert_ends(terminal, utc_text(end_of(terminal)))


@pytest.mark.parametrize("step", [SCALING, "deploy --k 3 --instance-count 3"])
def test_another_machine_moves_the_end_too(terminal: Terminal, step: str) -> None:
    assert run(terminal, "deploy --budget $12") == 0
    without_record(terminal)
    assert run(terminal, step) == 0
    assert end_of(terminal) == pytest.approx(START + 4 * HOUR, abs=900)


def test_a_higher_price_counts_the_budget_from_then_on(terminal: Terminal) -> None:
    assert run(terminal, "deploy --budget $12") == 0
    terminal.cloud.now = START + 6 * HOUR
    assert run(terminal, "scale --to 3") == 0
    assert end_of(terminal) == pytest.approx(START + 10 * HOUR, abs=900)
