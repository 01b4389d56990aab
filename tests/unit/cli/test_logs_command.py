"""``peagle logs`` and ``peagle token``."""

from __future__ import annotations

import base64
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from peagle.aws.client import Keys, connect
from peagle.cli.account import find_deployment
from peagle.engine.process import EngineProcess, start_time
from peagle.engine.state import LocalEngine, log_of, write
from tests.support import in_process
from tests.unit.aws.cloud import START
from tests.unit.cli.commands import NAME, Terminal, without_record


@pytest.fixture
def deployed(deployed: Terminal) -> Terminal:
    """A deployment whose log is empty again: the proof's lines are not the subject here."""
    deployed.cloud.log.clear()
    deployed.cloud.now = START
    return deployed


def test_logs_are_printed_verbatim(deployed: Terminal) -> None:
    deployed.cloud.write_log("first line")
    deployed.cloud.write_log("second | line ü")

    assert deployed.run("logs", NAME).out == "first line\nsecond | line ü\n"
    events = deployed.run("logs", NAME, "--json").document["events"]
    assert [event["message"] for event in events] == ["first line", "second | line ü"]
    assert events[0]["time"].startswith("2027-01-15T")


def test_since_omits_older_lines(deployed: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    deployed.cloud.write_log("old")
    deployed.cloud.now += 3600
    deployed.cloud.write_log("new")
    monkeypatch.setattr("time.time", lambda: START + 3700)

    assert deployed.run("logs", NAME, "--since", "30m").out == "new\n"


def test_an_empty_log_is_reported_with_since(
    deployed: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: START + 200)

    assert deployed.run("logs", NAME, "--since", "5s").err == "No lines yet.\n"


def test_since_counts_from_the_start_of_the_command(
    deployed: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading boto3 and asking AWS take seconds, which must not use up a short --since."""
    deployed.cloud.write_log("just now")
    clock = [START + 3]

    def slowly(*args: Any) -> Any:
        clock[0] += 4
        return find_deployment(*args)

    monkeypatch.setattr("time.time", lambda: clock[0])
    monkeypatch.setattr("peagle.cli.account.find_deployment", slowly)

    assert deployed.run("logs", NAME, "--since", "5s").out == "just now\n"


def test_follow_continues_until_ctrl_c(deployed: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(["one", "two"])

    def write_or_interrupt(seconds: float) -> None:
        line = next(lines, None)
        if line is None:
            raise KeyboardInterrupt
        deployed.cloud.now += seconds
        deployed.cloud.write_log(line)

    monkeypatch.setattr("time.sleep", write_or_interrupt)

    done = deployed.run("logs", NAME, "-f")

    assert done.out == "one\ntwo\n"
    assert done.err == ""
    assert done.code == 130


def test_follow_and_json_cannot_be_combined(deployed: Terminal) -> None:
    assert deployed.run("logs", NAME, "-f", "--json").code == 2


@pytest.fixture
def with_keys(deployed: Terminal, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    real = connect("us-east-1", keys=Keys("AKID", "secret"))
    monkeypatch.setattr(deployed.world.aws, "bearer_token", real.bearer_token)
    return deployed


def test_a_token_is_printed_alone(with_keys: Terminal) -> None:
    done = with_keys.run("token", NAME, "--duration", "30m")

    url = base64.b64decode(done.out.strip().removeprefix("sagemaker-api-key-")).decode()
    assert "Action=CallWithBearerToken" in url
    assert "X-Amz-Expires=1800" in url
    assert with_keys.run("token", NAME, "--json").document["expires_in_seconds"] == 43200


def test_a_token_needs_no_record(with_keys: Terminal) -> None:
    without_record(with_keys)

    assert with_keys.run("token", NAME).out.startswith("sagemaker-api-key-")


@pytest.mark.parametrize("duration", ["13h", "0s", "43201s"])
def test_a_token_lasts_12_hours_at_most(with_keys: Terminal, duration: str) -> None:
    done = with_keys.run("token", NAME, "--duration", duration)

    assert done.code == 2
    assert "12h" in done.error


@pytest.fixture
def engine(own_home: Path) -> str:
    """The name of an engine of ``peagle local up``, by its log."""
    log = log_of("mine")
    log.parent.mkdir(parents=True)
    log.touch()
    return "mine"


@pytest.mark.parametrize(
    ("command", "fix"),
    [
        ("logs", ("logs", "mine")),
        ("status", ("list",)),
        ("prove", ("logs", "mine")),
        ("invoke", ("logs", "mine")),
    ],
)
def test_the_name_of_an_engine_of_this_machine_leads_to_its_commands(
    terminal: Terminal, engine: str, command: str, fix: tuple[str, ...]
) -> None:
    prompt = ("hello",) if command == "invoke" else ()
    missing = terminal.run(command, engine, *prompt)
    elsewhere = terminal.run(command, engine, *prompt, "--region", "eu-west-1")

    assert missing.code == 2
    assert missing.err.rstrip().endswith(f": {shlex.join(('peagle', 'local', *fix))})")
    assert "peagle local" not in elsewhere.err


def test_prove_of_a_running_engine_leads_to_the_proof_of_its_url(
    terminal: Terminal, own_home: Path
) -> None:
    started = start_time(os.getpid())
    assert started is not None
    process = EngineProcess(os.getpid(), started, 8123, "log")
    write(LocalEngine("mine", "a+b", "a", "0.28.0", {}, (), process, 1.0, ready=True))

    done = terminal.run("prove", "mine")

    assert done.code == 2
    assert done.error.endswith(": peagle prove --url http://127.0.0.1:8123/v1)")


def test_without_an_account_too(engine: str) -> None:
    missing = in_process("logs", engine)

    assert missing.code == 2
    assert "and the account is unknown" in missing.err
    assert missing.err.rstrip().endswith(f"has that name: peagle local logs {engine})")
