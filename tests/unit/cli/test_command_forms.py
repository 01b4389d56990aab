"""How commands are declared: their options, the flags that no function gets, completion."""

from __future__ import annotations

import json
from typing import Any

import click
import pytest
from click.testing import CliRunner

from peagle.cli.options import command, completing, option, yes_option
from peagle.cli.view.console import confirm, print_result
from peagle.errors import NotFound, UserError


@pytest.mark.parametrize(("names", "type", "settings", "expected"), [
    ("--to N", click.INT, {}, (["--to"], "to", "N", False, False)),
    ("-o --output to F|D", None, {}, (["-o", "--output"], "to", "F|D", False, False)),
    ("--all everything", bool, {}, (["--all"], "everything", None, True, False)),
    ("--x one|N", None, {"default": "one"}, (["--x"], "x", "one|N", False, True)),
    ("--x k=N", None, {"default": 0, "show_default": False}, (["--x"], "x", "k=N", False, False)),
    ("--count", click.INT, {"default": 0}, (["--count"], "count", None, False, True)),
])  # fmt: skip
def test_names_of_an_option_are_flags_parameter_and_metavar(
    names: str, type: Any, settings: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    made = option(names, "Help.", type, **settings)
    shown = (made.opts, made.name, made.metavar, made.is_flag, bool(made.show_default))
    assert shown == expected


def test_a_tuple_is_a_choice() -> None:
    made = option("--engine", "Help.", ("process", "docker"))
    assert isinstance(made.type, click.Choice)
    assert list(made.type.choices) == ["process", "docker"]


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


def test_json_is_the_last_option_and_can_be_left_out() -> None:
    assert [part.name for part in make_command().params] == ["yes", "count", "as_json"]
    assert [part.name for part in make_command(json=False).params] == ["yes", "count"]


def test_a_command_joins_its_group_under_its_name() -> None:
    group = click.Group("group")
    made = make_command(of=group, name="other")
    assert group.commands == {"other": made}
    assert made.epilog == "Example: peagle ask"


def test_completion_begins_as_typed_and_hides_errors() -> None:
    context = click.Context(click.Command("x"))
    complete = completing(lambda ctx, typed: ["ab", "b", "ab", "ac"])
    assert complete(context, option("--x", ""), "a") == ["ab", "ac"]

    def fail(ctx: click.Context, typed: str) -> list[str]:
        raise NotFound("nothing", "fix", "code")

    assert completing(fail)(context, option("--x", ""), "") == []
