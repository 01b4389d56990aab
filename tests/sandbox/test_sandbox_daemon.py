"""Start and stop of the sandbox, also after crashes."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from peagle.engine.process import start_time
from peagle.errors import UserError
from peagle.sandbox import client
from tests import forked
from tests.sandbox.sandboxes import WEIGHTS, Account, Sandbox, until

pytestmark = pytest.mark.sandbox


def serving(home: Sandbox) -> Account:
    """A started sandbox with one endpoint in service."""
    home.json("sandbox", "start")
    account = Account(home)
    account.upload("tiny/", WEIGHTS)
    assert account.wait_until_stable(account.endpoint())["EndpointStatus"] == "InService"
    return account


def test_concurrent_starts_share_one_sandbox(home: Sandbox) -> None:
    start = ("sandbox", "start", "--json")
    starting = [forked.start(*start, environment=home.environment) for _ in range(6)]
    started = [process.stdout.read() for process in starting]
    assert {process.wait() for process in starting} == {0}
    assert json.loads(started[0])["url"]
    assert all(process == started[0] for process in started)
    assert len(home.processes()) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_start_that_is_interrupted_leaves_no_sandbox(
    home: Sandbox, number: signal.Signals
) -> None:
    command = ("deploy", "tiny", "--sandbox", "--yes")
    starting = forked.start(*command, environment=home.environment)
    until(home.processes, lambda begun: begun != [], seconds=30)
    os.kill(starting.pid, number)
    assert starting.wait() == (130 if number == signal.SIGINT else -signal.SIGKILL)
    if number == signal.SIGINT:
        assert home.processes() == []
    until(home.processes, lambda left: left == [], seconds=30)
    assert not (home.home / "sandbox" / "daemon.json").exists()


def test_it_listens_on_loopback_only(sandbox: Sandbox) -> None:
    port = int(sandbox.json("sandbox", "start")["url"].rpartition(":")[2])
    socket.create_connection(("127.0.0.1", port)).close()
    with pytest.raises(ConnectionRefusedError):  # this machine's other loopback address
        socket.create_connection(("127.0.0.2", port), timeout=2)


def test_the_port_can_be_set_and_a_port_in_use_is_an_error(home: Sandbox) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = home.peagle("sandbox", "start", "--port", port)
        assert done.returncode == 2
        assert done.stderr.startswith(f"error: port {port} cannot be used: Address already in use")
        assert "--port" in done.stderr
        until(home.commands, lambda left: left == [], seconds=20)
    assert home.json("sandbox", "start", "--port", port)["url"].endswith(f":{port}")
    done = home.peagle("sandbox", "start", "--port", "1")
    assert (done.returncode, f"already running on port {port}" in done.stderr) == (2, True)


def test_a_shell_evaluates_env_without_changing_values(sandbox: Sandbox) -> None:
    url = sandbox.json("sandbox", "start")["url"]
    quoted = 'us-east-1\'; echo broken; "$HOME" ü'
    overriding = {
        "AWS_PROFILE": "mine",
        "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true",
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9",
        "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": "https://example.org/'; echo broken; '",
        "AWS_ENDPOINT_URL_$(echo broken)": "x",
        "AWS_ENDPOINT_URL_A; echo broken\n": "x",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in overriding.items():
            patch.setenv(name, value)
        done = sandbox.peagle("sandbox", "env", "--region", quoted)
    show = shlex.join([sys.executable, "-c", "import json,os;print(json.dumps(dict(os.environ)))"])
    shell = subprocess.run(
        ["sh", "-c", f"{done.stdout}\n{show}"],
        env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **overriding},
        capture_output=True,
        text=True,
        check=True,
    )
    variables = json.loads(shell.stdout)
    assert variables["AWS_ENDPOINT_URL"] == url
    assert variables["AWS_REGION"] == quoted
    assert variables["AWS_ACCESS_KEY_ID"]
    assert "broken" not in done.stdout.replace(shlex.quote(quoted), "")
    assert done.stdout.splitlines()[-1].endswith(
        " AWS_IGNORE_CONFIGURED_ENDPOINT_URLS AWS_ENDPOINT_URL_BEDROCK_RUNTIME AWS_ENDPOINT_URL_S3"
    )
    unset = [name for name in overriding if name.replace("_", "").isalnum()]
    assert len(unset) == 4
    assert not variables.keys() & set(unset)


def test_status_lists_endpoints_and_stop_leaves_nothing(home: Sandbox) -> None:
    assert home.json("sandbox", "status")["running"] is False
    account = serving(home)
    status = home.json("sandbox", "status")
    assert (status["running"], status["url"]) == (True, account.url)
    (endpoint,) = status["endpoints"]
    assert (endpoint["name"], endpoint["state"]) == ("endpoint-1", "InService")
    assert (endpoint["region"], endpoint["stand_in"]) == ("us-east-1", None)
    assert endpoint["uptime_seconds"] > 0
    assert {status["pid"], endpoint["pid"]} < set(home.processes())
    assert len(home.processes()) == 3, "the sandbox, the entrypoint and its engine"
    with urllib.request.urlopen(f"http://127.0.0.1:{endpoint['port']}/ping") as answer:
        assert answer.status == 200
    assert "endpoint-1" in home.peagle("sandbox", "status").stdout
    records = home.home / "deployments" / "sandbox" / "us-east-1"
    records.mkdir(parents=True)
    (records / "endpoint-1.json").write_text("{}")
    assert home.json("sandbox", "stop") == {"was_running": True, "engines": 1}
    assert home.processes() == []
    left = [path.name for path in home.home.rglob("*") if path.is_file()]
    assert sorted(left) == ["daemon.log", "lock"]
    assert home.json("sandbox", "stop") == {"was_running": False, "engines": 0}


@pytest.mark.parametrize("command", [
    "list", "status endpoint-1", "invoke endpoint-1 hello", "destroy endpoint-1", "sandbox env",
])  # fmt: skip
def test_after_a_kill_every_command_says_what_still_runs(killed: Sandbox, command: str) -> None:
    words = command.split()
    done = killed.peagle(*words, *(["--sandbox"] if words[0] != "sandbox" else []))
    assert (done.returncode, done.stdout) == (2, "")
    assert "the sandbox was killed; engines still running: 1" in done.stderr.lower()
    assert "peagle sandbox stop" in done.stderr or command.startswith("destroy")
    assert len(killed.processes()) == 2


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, engine: Path) -> Iterator[Sandbox]:
    """A sandbox that was killed while an endpoint was in service."""
    home = Sandbox(tmp_path_factory.mktemp("killed"), engine)
    serving(home)
    _kill_daemon(home)
    yield home
    home.peagle("sandbox", "stop")
    assert home.processes() == []


def test_start_cleans_up_after_a_sandbox_that_was_killed(home: Sandbox) -> None:
    old = serving(home)
    _kill_daemon(home)
    started = home.json("sandbox", "start")
    assert home.processes() == [started["pid"]]
    assert Account(home).sagemaker.list_endpoints()["Endpoints"] == []
    assert old.url.startswith("http://127.0.0.1:")


def test_stop_ends_an_engine_that_is_starting(home: Sandbox) -> None:
    home.json("sandbox", "start")
    account = Account(home)
    account.upload("tiny/", WEIGHTS)
    name = account.endpoint({"VLLM_FAKE_ENGINE": "never-healthy"})
    account.wait_for_line(name, "fake: INFO starting")
    assert account.describe(name)["EndpointStatus"] == "Creating"
    home.json("sandbox", "stop")
    assert home.processes() == []


def test_a_daemon_without_a_readable_record_ends(home: Sandbox) -> None:
    serving(home)
    (home.home / "sandbox" / "daemon.json").write_bytes(b'{\n  "pid": 12')
    until(home.processes, lambda left: left == [], 20)
    assert home.json("sandbox", "status")["running"] is False


def test_a_missing_moto_is_an_error_with_the_fix(
    home: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "find_spec", lambda name: None)
    with home.at_home(), pytest.raises(UserError) as raised:
        client.start_sandbox()
    assert raised.value.message == "the sandbox needs moto"
    assert raised.value.command == ("pip", "install", "peagle-toolkit[sandbox]")


def test_the_package_and_the_commands_do_not_load_moto() -> None:
    code = "import sys, peagle.cli.local; print([m for m in sys.modules if 'moto' in m])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "[]\n"


def _kill_daemon(home: Sandbox) -> None:
    pid = home.json("sandbox", "status")["pid"]
    os.kill(pid, signal.SIGKILL)
    # A process that is being killed loses its environment before it ends.
    until(lambda: start_time(pid), lambda started: started is None)
