"""The command line as a whole: quick help, one-line errors, the right exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from peagle.cli.main import COMMANDS, cli
from tests.support import Peagle, in_process

NAMES = [name for commands in COMMANDS.values() for name in commands]
Completed = subprocess.CompletedProcess[str]
HEAVY = ("boto3", "botocore", "moto", "torch", "vllm", "sagemaker")

READING = (
    ("--help",),
    ("catalog", "list", "--json"),
    ("catalog", "show", "gpt-oss-20b", "--json"),
    ("plan", "gpt-oss-20b", "--json"),
    ("render", "cloudformation", "gpt-oss-20b", "-o", "out"),
)
IMPORTED = f"""
import json, sys
from peagle.cli.main import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["peagle", *words]
    try:
        main()
    except SystemExit as ended:
        heavy = [name for name in {HEAVY!r} if name in sys.modules]
        print(*words, "ends with", ended.code, heavy, file=sys.stderr)
"""
"""Starts each command in a process without other commands and without packages above planning."""


def run(program: str, *arguments: str, folder: Path | None = None) -> Completed:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


@pytest.mark.thorough
def test_reading_commands_import_nothing_heavy(tmp_path: Path) -> None:
    done = run(IMPORTED, json.dumps(READING), folder=tmp_path)
    ends = [line for line in done.stderr.splitlines() if " ends with " in line]
    assert ends == [f"{' '.join(words)} ends with 0 []" for words in READING], done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_every_command_exists_and_its_help_has_an_example(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert isinstance(command, click.Command)
    if isinstance(command, click.Group):
        assert all(child.epilog or child.help for child in command.commands.values())
    assert "peagle" in (command.epilog or ""), f"`peagle {name} --help` shows no example"


def test_json_after_the_end_of_options_is_an_argument(peagle: Peagle) -> None:
    done = peagle("plan", "--bad", "--", "--json")
    assert done.returncode == 2
    assert done.stderr.startswith("error: peagle plan has no option --bad")


@pytest.mark.parametrize(
    ("option", "meant"),
    [("--subnets", "the key subnets of peagle.yaml"), ("--users", "--concurrency"),
     ("--workloads", "--workload")],
)  # fmt: skip
def test_a_wrong_option_names_the_right_one(option: str, meant: str) -> None:
    error = in_process("plan", "tiny", option, "8").error
    assert f"no option {option}: " in error
    assert meant in error


def test_no_command_shows_the_help(peagle: Peagle) -> None:
    done = peagle()
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: peagle")


@pytest.mark.thorough
def test_a_full_disk_is_one_line_and_no_traceback(peagle_process: Peagle) -> None:
    with open("/dev/full", "w") as full:
        done = peagle_process(
            "plan", "tiny", "--json", capture_output=False, stdout=full, stderr=subprocess.PIPE
        )
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_closed_pipe_is_no_error(peagle_process: Peagle, options: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = peagle_process(
            "catalog",
            "list",
            *options,
            capture_output=False,
            stdout=writing,
            stderr=subprocess.PIPE,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_an_unusable_home_is_a_user_error(peagle: Peagle) -> None:
    done = peagle("engine", "install", env={**os.environ, "PEAGLE_HOME": "/proc/nowhere"})
    assert done.returncode == 2
    assert "/proc/nowhere" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("started_before", [True, False])
def test_the_demo_stops_only_a_sandbox_that_it_started(
    started_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peagle.cli import machine as demo

    ran: list[str] = []
    monkeypatch.setattr(
        "peagle.sandbox.client.running_sandbox", lambda: object() if started_before else None
    )
    monkeypatch.setattr(demo, "_run", lambda *words, check=True: ran.append(" ".join(words[:2])))
    demo.demo.main([], standalone_mode=False)
    assert ("sandbox stop" in ran) is not started_before
    assert f"destroy {demo.NAME}" in ran


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"AWS_PROFILE": "nope"}, "there is no profile nope"),
        ({"AWS_ACCESS_KEY_ID": "x"}, "from the environment"),
        ({}, "there is no profile default"),
    ],
)
def test_the_doctor_says_where_credentials_would_come_from(
    peagle: Peagle, settings: dict[str, str], found: str
) -> None:
    done = peagle("doctor", "--json", env={**os.environ, **settings})
    checks = {check["what"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["AWS credentials"]["found"] == found
    assert checks["AWS credentials"]["fine"] is (found == "from the environment")


def test_a_catalogue_folder_without_files_is_refused(peagle: Peagle, tmp_path: Path) -> None:
    for words in (("plan", "tiny"), ("catalog", "list"), ("check", "tiny")):
        done = peagle("--catalog", str(tmp_path), *words)
        assert done.returncode == 2
        assert f"--catalog {tmp_path}: the folder holds no catalogue files" in done.stderr
