"""The command line as a whole: quick help, one-line errors, the right exit codes."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from pydantic import BaseModel, model_serializer

from peagle.account import Account
from peagle.cli.__main__ import start
from peagle.cli.context import in_context, typed_command
from peagle.cli.machine import read_explanations
from peagle.cli.main import cli, main
from peagle.data import data_folder
from tests.support import Peagle, in_process
from tests.unit.cli.commands import NAME, Terminal

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
@pytest.mark.parametrize(
    ("line", "code"), [("catalog list", 0), ("catalog list --json", 0), ("check tiny --k 90", 3)]
)
def test_closed_pipe_is_no_error(peagle_process: Peagle, line: str, code: int) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = peagle_process(
            *line.split(), capture_output=False, stdout=writing, stderr=subprocess.PIPE
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (code, "")


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
        "peagle.sandbox.state.read_daemon", lambda: object() if started_before else None
    )
    monkeypatch.setattr(demo, "_run", lambda *words, check=True: ran.append(" ".join(words[:2])))
    demo.demo.main([], standalone_mode=False)
    assert ("sandbox stop" in ran) is not started_before
    assert f"destroy {demo.NAME}" in ran


@pytest.mark.thorough
@pytest.mark.parametrize(("settings", "source"), [
    ({"AWS_PROFILE": "nope"}, "there are none"),
    ({"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}, "found (env)"),
    ({}, "there are none"),
])  # fmt: skip
def test_the_doctor_says_where_credentials_would_come_from(
    peagle: Peagle, settings: dict[str, str], source: str
) -> None:
    alone = {"AWS_EC2_METADATA_DISABLED": "true"}
    done = peagle("doctor", "--json", env={**os.environ, **alone, **settings})
    checks = {check["what"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["AWS credentials"]["found"] == source
    assert checks["AWS credentials"]["fine"] is (source == "found (env)")


@pytest.mark.parametrize(("file", "fine"), [
    ("[default]\nregion = us-east-1\n", False),
    ("[default]\naws_access_key_id = a\naws_secret_access_key = b\n", True),
])  # fmt: skip
def test_the_doctor_looks_for_credentials_in_a_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, fine: bool
) -> None:
    (tmp_path / "config").write_text(file)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    checks = in_process("doctor", "--json").document["checks"]
    (check,) = (check for check in checks if check["what"] == "AWS credentials")
    assert check["fine"] is fine


@pytest.mark.thorough
def test_the_doctor_indents_what_it_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    for line in in_process("doctor").out.splitlines():
        assert re.match(r"(ok|--) \w| {13}", line), line


def test_ctrl_c_while_modules_load_shows_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupting:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "peagle.cli.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "peagle.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        start()
    assert ended.value.code == 130


def test_an_interrupt_that_pydantic_hides_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Record(BaseModel):
        @model_serializer
        def write(self) -> str:
            raise KeyboardInterrupt

    monkeypatch.setattr(cli, "main", lambda **_: Record().model_dump_json())
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130


def test_a_command_without_gpu_names_the_option_that_it_has(terminal: Terminal) -> None:
    done = terminal.run("plan", "tiny", "--gpu", "H100")
    assert (done.code, "--instance-type" in done.error) == (2, True)


# A printed command has --catalog, --profile, --sandbox and --region of the user's command line.
def parsed(line: str) -> click.Context:
    """The context of a complete command line, without running it."""
    words = shlex.split(line)
    end = 2 if words[:1] == ["--catalog"] else 0
    root = cli.make_context("peagle", words[: end + 1])
    name, *rest = words[end:]
    command = cli.get_command(root, name)
    assert command is not None
    return command.make_context(name, rest, parent=root)


@pytest.mark.parametrize(("typed", "command", "printed"), [
    ("deploy tiny --sandbox", "peagle logs n", "peagle logs n --sandbox"),
    ("deploy tiny --profile p --role R", "peagle list", "peagle list --profile p"),
    ("deploy tiny --region r", "peagle invoke n -- -x", "peagle invoke n --region r -- -x"),
    ("deploy tiny --region r", "peagle logs n --region s", "peagle logs n --region s"),
    ("deploy tiny --sandbox", "peagle doctor", "peagle doctor"),
    ("deploy tiny --sandbox", "peagle plan tiny", "peagle plan tiny"),
    ("deploy t --sandbox", "peagle plan t --online", "peagle plan t --online --sandbox"),
    ("deploy t --sandbox", "peagle catalog refresh --prices", "peagle catalog refresh --prices"),
    ("--catalog . deploy tiny", "peagle check tiny", "peagle --catalog . check tiny"),
    ("--catalog . deploy tiny", "aws iam list-roles", "aws iam list-roles"),
    ("deploy tiny --profile p", "aws iam list-roles", "aws iam list-roles --profile p"),
    ("deploy tiny --profile p", "aws configure list-profiles", "aws configure list-profiles"),
    ("deploy tiny --sandbox", "aws iam list-roles", ""),
    ("deploy tiny --sandbox", "python -c x", "python -c x"),
])  # fmt: skip
def test_a_command_gets_the_options_that_it_takes(typed: str, command: str, printed: str) -> None:
    assert " ".join(in_context(command.split(), parsed(typed))) == printed


def test_the_own_command_is_repeated_as_it_was_typed() -> None:
    context = parsed("--catalog . invoke --max-tokens=1k --json n -- '-a b'")
    words = ("peagle", "--catalog", ".", "invoke", "--max-tokens=1k", "n", "--", "-a b")
    with context:
        assert typed_command(without=("--json",)) == words


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
    terminal.cloud.next_scripts = [[("Creating", None), ("Failed", "no ping")]]
    head = ("--catalog", str(folder), "deploy")
    typed = ("tiny", "--instance-type", "ml.g5.xlarge", "--sandbox")
    done = terminal.run(*head, *typed, "--yes")
    assert done.code == 4
    lines = {line[:12].strip(): shlex.split(line[12:]) for line in done.err.splitlines()
             if line.startswith(("Continue ", "Remove "))}  # fmt: skip
    assert lines["Continue"] == ["peagle", *head, *typed]
    assert lines["Remove"] == ["peagle", *head[:2], "destroy", NAME, "--sandbox"]
    assert f"peagle --catalog {shlex.quote(str(folder))} logs {NAME} --sandbox" in done.error


# ``peagle explain`` knows every code that the chapter on errors lists.
PAGE = (data_folder("docs") / "errors.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("code", "severity", "about"), [
    ("fc-width", "error", "Draft heads"),
    ("head-window", "warning", "Draft heads"),
    ("interrupted", None, "Interrupted (exit code 130)"),
    ("out-of-memory", None, "Why an engine ended"),
])  # fmt: skip
def test_a_code_has_a_cause_or_a_fix(code: str, severity: str | None, about: str) -> None:
    rows = in_process("explain", code, "--json").document["explanations"]
    assert {(row["severity"], row["about"]) for row in rows} == {(severity, about)}
    assert all(row["cause"] or row["fix"] for row in rows)
    shown = in_process("explain", code)
    assert (shown.code, shown.out.startswith(f"{code}: ")) == (0, True)


def test_every_row_is_read_without_marks() -> None:
    listed = re.findall(r"^\| `([^`]+)`", PAGE, re.MULTILINE)
    rows = list(read_explanations())
    assert [row["code"] for row in rows] == listed
    texts = [text for row in rows for text in (row["cause"], row["fix"]) if text]
    assert not [text for text in texts if "\\|" in text or re.search(r"(^| )\*\w", text)]


@pytest.mark.parametrize(
    ("line", "code"), [("explain fc-widt --json", "unknown-code"), ("explain --json", "usage")]
)
def test_what_is_no_code_is_refused(line: str, code: str) -> None:
    done = in_process(*line.split())
    assert (done.code, done.refusal["code"]) == (2, code)
