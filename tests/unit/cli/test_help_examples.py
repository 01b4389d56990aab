"""Every example of every ``--help`` is a command that the tool takes, with real bucket names."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from peagle.cli.main import cli

_COMMAND = re.compile(r"peagle (?:\\\n|.)+?(?=\n| && |\)\"|$)")


def _commands(
    command: click.Command, words: tuple[str, ...] = ("peagle",)
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command, **cli.context_settings)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _commands(below, (*words, name))


COMMANDS = {" ".join(words): command for words, command in _commands(cli)}
EXAMPLES = sorted(
    {
        example.strip().replace("\\\n", "")
        for command in COMMANDS.values()
        for example in _COMMAND.findall(command.epilog or "")
    }
)
PROJECT = "environments: {staging: {}, production: {}}\nendpoints: {chat: {pair: tiny}}\n"
"""The project file of the examples."""


def test_help_shows_each_example_on_its_own_line() -> None:
    wrong = []
    for command in COMMANDS.values():
        shown = command.get_help(
            click.Context(command, terminal_width=80, **cli.context_settings)
        ).splitlines()
        for example in _COMMAND.findall(command.epilog or ""):
            for part in example.splitlines():
                line = next((line for line in shown if part.strip() in line), "")
                alone = len(_COMMAND.findall(line)) <= 1 or " && " in line
                wrong += [] if line and alone else [part]
    assert wrong == []


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_command_line_takes_it(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(example)[1:]
    for word in words:
        if word.endswith(".yaml"):  # a file of the user's, which must be there
            Path(word).parent.mkdir(parents=True)
            Path(word).touch()
    if "-e" in words:
        Path("peagle.yaml").write_text(PROJECT, encoding="utf-8")
    command: click.Command = cli
    context = command.make_context("peagle", words)
    while isinstance(command, click.Group):
        _, below, words = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        assert below is not None
        command = below
        context = command.make_context(command.name, words, parent=context)
