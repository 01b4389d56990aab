"""``peagle logs`` and ``peagle token``."""

import base64
from pathlib import Path

import pytest

from peagle.aws.client import Keys, connect
from peagle.engine.state import log_of
from tests.unit.aws.cloud import START, service_error
from tests.unit.cli.commands import NAME, Terminal


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
    assert deployed.run("logs", NAME, "--since", "5s").err == "No lines in that time.\n"


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


def test_the_name_of_an_engine_of_this_machine_leads_to_it(terminal: Terminal, engine: str) -> None:
    missing = terminal.run("logs", engine)
    elsewhere = terminal.run("logs", engine, "--region", "eu-west-1")
    assert missing.code == 2
    assert "peagle local list" in missing.err
    assert "peagle local" not in elsewhere.err


# ``peagle top``: a deployment on AWS, whatever may be read of it.


def test_what_may_not_be_read_is_named(deployed: Terminal) -> None:
    def refuse(operation: str) -> None:
        if operation in ("get_metric_data", "filter_log_events"):
            raise service_error("AccessDeniedException", "not authorized to perform: x", operation)

    deployed.cloud.before = refuse
    done = deployed.succeeds("top", NAME, "--once")
    assert "requests and TTFT are unknown" in done.out
    assert "ITL, KV cache, acceptance and tokens are unknown" in done.out
