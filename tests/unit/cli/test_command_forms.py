"""How commands are declared: their options, the flags that no function gets, completion."""

from __future__ import annotations

import json
from typing import Any

import click
import pytest
from click.testing import CliRunner

from peagle.cli.options import command, option, yes_option
from peagle.cli.view import confirm, print_result
from peagle.errors import UserError


def make_command(**settings: Any) -> click.Command:
    @command("peagle ask", **settings)
    @yes_option
    @option("--count", "Help.", click.INT)
    def ask(count: int | None) -> None:
        confirm("Go on?", "not asked")
        print_result({"count": count}, lambda result: click.echo(f"count {result['count']}"))

    return ask


@pytest.mark.parametrize(("words", "output"), [
    (["--yes", "--count", "2"], "count 2\n"),
    (["-y", "--json"], json.dumps({"count": None}, indent=2) + "\n"),
])  # fmt: skip
def test_yes_and_json_are_read_where_they_matter(words: list[str], output: str) -> None:
    assert CliRunner().invoke(make_command(), words).output == output


def test_without_yes_a_question_needs_a_terminal() -> None:
    error = CliRunner().invoke(make_command(), []).exception
    assert isinstance(error, UserError)
    assert error.code == "confirmation-needed"
