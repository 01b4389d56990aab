"""A printed command has --catalog, --profile, --sandbox and --region of the user's command line."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from peagle.account import Account
from peagle.cli.context import in_context, own_command
from peagle.cli.main import cli
from peagle.data import data_folder
from tests.support import in_process
from tests.unit.cli.commands import NAME, Terminal


def parsed(line: str) -> click.Context:
    """The context of a complete command line, without running it."""
    words = shlex.split(line)
    end = 2 if words[:1] == ["--catalog"] else 0
    root = cli.make_context("peagle", words[: end + 1])
    name, *rest = words[end:]
    command = cli.get_command(root, name)
    assert command is not None
    return command.make_context(name, rest, parent=root)


@pytest.mark.parametrize(
    ("typed", "command", "printed"),
    [
        ("deploy tiny --sandbox", "peagle logs n", "peagle logs n --sandbox"),
        ("deploy tiny --profile p --role R", "peagle list", "peagle list --profile p"),
        ("deploy tiny --region r", "peagle invoke n -- -x", "peagle invoke n --region r -- -x"),
        ("deploy tiny --region r", "peagle logs n --region s", "peagle logs n --region s"),
        ("deploy tiny --sandbox", "peagle doctor", "peagle doctor"),
        ("deploy tiny --sandbox", "peagle plan tiny", "peagle plan tiny"),
        ("deploy t --sandbox", "peagle plan t --online", "peagle plan t --online --sandbox"),
        ("--catalog . deploy tiny", "peagle check tiny", "peagle --catalog . check tiny"),
        ("--catalog . deploy tiny", "aws iam list-roles", "aws iam list-roles"),
        ("deploy tiny --profile p", "aws iam list-roles", "aws iam list-roles --profile p"),
        ("deploy tiny --profile p", "aws configure list-profiles", "aws configure list-profiles"),
        ("deploy tiny --sandbox", "aws iam list-roles", ""),
        ("deploy tiny --sandbox", "python -c x", "python -c x"),
    ],
)  # fmt: skip
def test_a_command_gets_the_options_that_it_takes(typed: str, command: str, printed: str) -> None:
    assert " ".join(in_context(command.split(), parsed(typed))) == printed


def test_options_of_the_environment_are_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert in_context(("peagle", "logs", "n"), parsed("deploy tiny")) == ("peagle", "logs", "n")


def test_the_own_command_is_repeated_as_it_was_typed() -> None:
    context = parsed("--catalog . invoke --max-tokens=1k --json n -- '-a b'")
    words = ("peagle", "--catalog", ".", "invoke", "--max-tokens=1k", "n", "--", "-a b")
    assert own_command(context, without=("--json",)) == words


def test_control_characters_of_a_command_are_escaped_for_the_terminal_and_the_shell() -> None:
    value = "A=x\a'y\\z\x1b[2J\u00e9"
    shown = in_process("plan", "tiny", "--env", value).out
    line = next(line for line in shown.splitlines() if line.startswith("Next:"))
    assert line.isprintable()
    words = line.removeprefix("Next: ")
    done = subprocess.run(
        ["bash", "-c", f"printf %s\\\\n {words}"], capture_output=True, check=True
    )
    assert value in done.stdout.decode().splitlines()


def test_the_hints_after_a_failed_deploy_reach_what_it_made(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "own $catalogue's"
    folder.mkdir()
    shutil.copy(data_folder("model_catalog") / "runtimes.yaml", folder)
    monkeypatch.setattr(Account, "is_available", True)
    monkeypatch.setattr("peagle.sandbox.client.check_sandbox_engine", lambda: None)
    monkeypatch.setattr("peagle.sandbox.client.add_instances", lambda instances: None)
    terminal.cloud.next_scripts = [[("Creating", None), ("Failed", "no ping")]]
    head = ("--catalog", str(folder), "deploy")
    typed = ("tiny", "--instance-type", "ml.g5.xlarge", "--sandbox")
    done = terminal.run(*head, *typed, "--yes")
    assert done.code == 4
    lines = {line[:8].strip(): shlex.split(line[9:]) for line in done.err.splitlines()
             if line.startswith(("Continue ", "Remove   "))}  # fmt: skip
    assert lines["Continue"] == ["peagle", *head, *typed]
    assert lines["Remove"] == ["peagle", *head[:2], "destroy", NAME, "--sandbox"]
    assert f"peagle --catalog {shlex.quote(str(folder))} logs {NAME} --sandbox" in done.error
