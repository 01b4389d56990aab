"""Every parser under random inputs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import USUAL
from tests.fuzz.measure import Failed, check, measure
from tests.fuzz.parser import Parser
from tests.fuzz.parsers import PARSERS
from tests.fuzz.run import CORPUS, run

INPUTS, USUAL_INPUTS = 200, 50
"""Random inputs for each parser, in `make test-all` and in `make test`."""
MOST_SECONDS_OF_ALL = 60.0
pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("parser", PARSERS.values(), ids=PARSERS)
def test_a_parser_ends_with_a_result_or_its_error(
    parser: Parser, pytestconfig: pytest.Config
) -> None:
    """The examples, what once failed, and random inputs, the same in every run. `make fuzz` prints
    the shortest input that it finds, and takes others."""
    inputs = USUAL_INPUTS if pytestconfig.option.markexpr == USUAL else INPUTS
    counts = run(parser, inputs, MOST_SECONDS_OF_ALL)
    assert not counts.failures


def test_the_corpus_has_no_folder_without_a_parser() -> None:
    assert {path.name for path in CORPUS.glob("*")} <= {*PARSERS, "README.md"}


@pytest.mark.parametrize(
    ("parse", "why"),
    [
        (lambda _: 1 / 0, "ZeroDivisionError"),
        (lambda _: _spin(), "still runs"),
        (lambda _: bytearray(300 << 20), " MB"),
        (lambda _: list(range(2**31)), "needs more than"),
    ],
)
def test_what_exceeds_a_limit_is_a_failure(
    parse: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "still runs":  # the others may take longer on a busy machine
        monkeypatch.setattr("tests.fuzz.measure._STOP_SECONDS", 1.0)
    parser = Parser("broken", parse, ["x"], (ValueError,))
    assert why in measure(parser, "x").failure
    with pytest.raises(Failed, match=why):
        check(parser, "x")


def _spin() -> None:
    while True:
        pass
