"""Every parser under random inputs."""

import os

import pytest

from tests.conftest import USUAL
from tests.fuzz.parser import CORPUS, Parser, run
from tests.fuzz.parsers import PARSERS

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("parser", PARSERS.values(), ids=PARSERS)
def test_parser_ends_with_result_or_its_error(parser: Parser, pytestconfig: pytest.Config) -> None:
    """The examples, what once failed, and random inputs. `make fuzz` takes more of these."""
    usual = 50 if pytestconfig.option.markexpr == USUAL else 200
    run(parser, int(os.environ.get("FUZZ_INPUTS", usual)))


def test_the_corpus_has_no_folder_without_a_parser() -> None:
    assert {path.name for path in CORPUS.glob("*")} <= {*PARSERS, "README.md"}
