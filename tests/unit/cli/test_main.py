"""The command line as a whole: quick help, one-line errors, the right exit codes."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import click
import pytest

from tests.support import Peagle
from toolkit.cli.main import COMMANDS

HEAVY = ("boto3", "botocore", "moto", "torch", "vllm", "sagemaker")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["catalog", "list", "--json"],
        ["catalog", "show", "gpt-oss-20b", "--json"],
        ["plan", "gpt-oss-20b", "--json"],
        ["render", "cloudformation", "gpt-oss-20b", "-o", "{folder}"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_reading_commands_import_nothing_heavy(arguments: list[str], tmp_path: object) -> None:
    given = [argument.format(folder=f"{tmp_path}/out") for argument in arguments]
    script = (
        "import sys\n"
        "from toolkit.cli.main import main\n"
        f"sys.argv = ['peagle', *{given!r}]\n"
        "try:\n    main()\n"
        "finally:\n"
        f"    print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_exists_and_its_help_has_an_example(name: str) -> None:
    module, _, attribute = COMMANDS[name][0].partition(":")
    command = getattr(import_module(module), attribute)

    assert isinstance(command, click.Command)
    if isinstance(command, click.Group):
        assert all(child.epilog or child.help for child in command.commands.values())
    assert "peagle" in (command.epilog or ""), f"`peagle {name} --help` shows no example"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["plan"], "Missing argument"),
        (["plan", "gpt-oss-20b", "--k", "many"], "'many' is not a valid integer"),
        (["nothing"], "No such command"),
        (["plan", "gpt-oss-21b"], "gpt-oss-20b"),
        (["plan", "gpt-oss-20b", "--instance-type", "ml.g6e.3xlarge"], "ml.g6e.2xlarge"),
    ],
)
def test_a_wrong_use_is_one_line_and_code_2(
    peagle: Peagle, arguments: list[str], expected: str
) -> None:
    done = peagle(*arguments)

    assert done.returncode == 2
    assert expected in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
