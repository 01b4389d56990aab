"""The entrypoint looks after the engine: it ends with it, restarts it, and lets it drain."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.unit.local.conftest import processes_with
from toolkit.local.process import free_port

CONTAINERS = Path(__file__).resolve().parents[3] / "containers"
RUN = """
import sys
import serve.supervisor
serve.supervisor.STOP_SECONDS = 0.5
from serve.command import main
main(["serve"])
"""
SECRET = "hf_" + "a1B2c3D4" * 4
HEALTHY = "tell('hello'); tell('healthy');"
OUT_OF_MEMORY = "raise RuntimeError('CUDA out of memory. Tried to allocate 20 GiB')"


@dataclass
class Container:
    """One run of the entrypoint with a stand-in for vLLM."""

    process: subprocess.Popen[bytes]
    folder: Path
    mark: str
    begun: float = field(default_factory=time.monotonic)

    def told(self) -> list[dict[str, Any]]:
        """The log up to now."""
        lines = (self.folder / "log").read_bytes().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith(b"\n")]

    def wait_for(self, message: str) -> dict[str, Any]:
        """The first line of the log with that in its message."""
        end = time.monotonic() + 10
        while time.monotonic() < end:
            for document in self.told():
                if message in document["message"]:
                    return document
            time.sleep(0.02)
        raise AssertionError(f"never said: {message}; but: {self.told()}")

    def ask_to_end(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def ended(self, seconds: float = 10) -> int:
        """The exit code. Nothing of it is left."""
        code = self.process.wait(seconds)
        assert processes_with(self.mark) == []
        return code

    def starts(self) -> list[int]:
        """The process of every start of the engine."""
        return [int(line) for line in (self.folder / "starts").read_text().split()]


Run = Callable[..., Container]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """``run("crash()")``: the entrypoint, with an engine that does that."""
    package = tmp_path / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("stand_in_engine.py"), package / "api_server.py")
    (tmp_path / "vllm" / "__init__.py").touch()
    (tmp_path / "starts").touch()
    begun: list[Container] = []

    def start(how: str, **environment: str) -> Container:
        mark = f"mark-{time.monotonic_ns()}"
        variables = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{CONTAINERS}:{tmp_path}",
            "SM_VLLM_MODEL": "a/b",
            "SM_VLLM_HOST": "127.0.0.1",
            "SAGEMAKER_BIND_TO_PORT": str(free_port()),
            "HOW": how,
            "STARTS": str(tmp_path / "starts"),
            "MARK": mark,
            **environment,
        }
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen([sys.executable, "-c", RUN], env=variables, stderr=log)
        begun.append(Container(process, tmp_path, mark))
        return begun[-1]

    yield start
    for container in begun:
        container.process.kill()
        container.process.wait()
        for pid in processes_with(container.mark):
            os.kill(pid, signal.SIGKILL)


def test_a_crash_at_start_ends_the_container_with_its_cause_and_how_to_mend_it(run: Run) -> None:
    container = run(f"print('loading'); {OUT_OF_MEMORY}")

    assert container.ended(5) == 1
    last = container.told()[-1]
    assert (last["level"], last["stage"], last["exit_code"]) == ("ERROR", "ended", 1)
    assert last["cause"] == "out-of-memory"
    assert "CUDA out of memory. Tried to allocate 20 GiB" in last["message"]
    assert "--gpu-memory-utilization" in last["fix"]
    assert len(container.starts()) == 1, "an engine that never was healthy is not started again"


def test_a_child_that_lingers_delays_the_end_by_less_than_5_seconds(run: Run) -> None:
    container = run("linger(); os._exit(3)")

    assert container.ended(5) == 3
    assert "exit code 3" in container.told()[-1]["message"]


def test_an_engine_that_is_killed_says_so(run: Run) -> None:
    container = run("os.kill(os.getpid(), 9)")

    assert container.ended(5) == 128 + signal.SIGKILL
    assert container.told()[-1]["cause"] == "killed"
    assert "memory" in container.told()[-1]["fix"]


def test_an_engine_that_ends_by_itself_is_no_success(run: Run) -> None:
    assert run("pass").ended(5) == 1


def test_after_it_was_healthy_a_crash_starts_it_again_up_to_a_limit(run: Run) -> None:
    container = run(f"{HEALTHY} {OUT_OF_MEMORY}", PEAGLE_RESTARTS="2")

    assert container.ended() == 1
    assert len(container.starts()) == 3
    again = [document for document in container.told() if "started again" in document["message"]]
    assert ["(1 of 2 in an hour)" in again[0]["message"], len(again)] == [True, 2]
    assert "CUDA out of memory" in again[0]["message"]
    assert container.told()[-1]["cause"] == "out-of-memory"


def test_a_restart_that_is_not_healthy_again_is_the_last(run: Run) -> None:
    container = run(f"START > 1 and sys.exit(4); {HEALTHY} sys.exit(1)")

    assert container.ended() == 4
    assert len(container.starts()) == 2


def test_a_restarted_engine_serves_as_the_first_did(run: Run) -> None:
    how = f"{HEALTHY} sleep(0.2); print('start', START, flush=True); START > 1 and sleep(); exit(1)"
    container = run(how, PEAGLE_DRAIN_SECONDS="0")
    assert container.wait_for("start 2")["stage"] == "serving"

    container.ask_to_end()

    assert container.ended() == 0


def test_a_drafter_that_does_not_draft_ends_the_container_at_once(run: Run) -> None:
    container = run("tell('hello'); tell('failed speculation was asked for, not a draft'); sleep()")

    assert container.ended(5) != 0
    last = container.told()[-1]
    assert last["cause"] == "no-drafts"
    assert "speculation was asked for" in last["message"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_end_it_lets_the_engine_answer_first(run: Run, number: int) -> None:
    container = run(
        f"{HEALTHY} assert hear() == 'drain'; sleep(0.5); print('answered', flush=True);"
        "tell('idle'); sleep()"
    )
    container.wait_for("the engine is healthy")

    container.ask_to_end(number)

    assert container.ended() == 0
    told = container.told()
    messages = [document["message"] for document in told]
    assert messages.index("answered") < messages.index("all requests are answered")
    assert told[messages.index("answered")]["stage"] == "draining"
    assert (told[-1]["level"], told[-1]["stage"]) == ("INFO", "ended")


def test_draining_has_a_limit(run: Run) -> None:
    container = run(f"{HEALTHY} sleep()", PEAGLE_DRAIN_SECONDS="1")
    container.wait_for("the engine is healthy")
    begin = time.monotonic()

    container.ask_to_end()

    assert container.ended() == 0
    assert 1 <= time.monotonic() - begin < 4
    container.wait_for("what still runs is cut off")


def test_told_twice_it_does_not_wait(run: Run) -> None:
    container = run(f"{HEALTHY} sleep()")
    container.wait_for("the engine is healthy")
    container.ask_to_end()
    container.wait_for("told to end")

    container.ask_to_end()

    assert container.ended(5) == 0


@pytest.mark.parametrize("before", ["", HEALTHY])
def test_an_engine_that_minds_no_signal_is_killed_with_its_children(run: Run, before: str) -> None:
    container = run(f"deaf(); linger(); {before} print('begun', flush=True); sleep()",
                    PEAGLE_DRAIN_SECONDS="0")  # fmt: skip
    container.wait_for("begun")

    container.ask_to_end()

    assert container.ended(5) == 0


def test_told_to_end_while_it_starts_it_ends(run: Run) -> None:
    container = run("print('loading', flush=True); sleep()")
    container.wait_for("loading")

    container.ask_to_end()

    assert container.ended(5) == 0


def test_orphans_leave_no_zombies(run: Run) -> None:
    container = run(f"{HEALTHY} linger(); print('begun', flush=True); sleep()")
    container.wait_for("begun")
    (child,) = set(processes_with(container.mark)) - {container.process.pid, *container.starts()}

    os.kill(container.starts()[0], signal.SIGKILL)

    container.wait_for("started again")
    assert child not in processes_with(container.mark)
    container.ask_to_end()
    assert container.ended(5) == 0


def test_a_port_in_use_is_found_before_the_engine_starts(run: Run) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]

        container = run("sleep()", SAGEMAKER_BIND_TO_PORT=str(port))

        assert container.ended(5) == 2
    assert f"port {port} is in use" in container.told()[-1]["message"]
    assert container.starts() == []


def test_the_engines_output_is_in_the_log_without_secrets(run: Run) -> None:
    container = run(
        f"print('token {SECRET} and my-own-secret'); print('no end', end=''); sys.exit(1)",
        SM_VLLM_API_KEY="my-own-secret",
    )
    container.ended()

    assert container.wait_for("token")["message"] == "token *** and ***"
    assert container.wait_for("no end")["from"] == "engine"
    log = (container.folder / "log").read_text()
    assert SECRET not in log
    assert "my-own-secret" not in log


def test_a_secret_in_the_error_itself_is_not_in_the_last_line(run: Run) -> None:
    container = run(f"raise ValueError('bad token {SECRET}')")
    container.ended()

    assert container.told()[-1]["message"] == "the engine ended: ValueError: bad token ***"


@pytest.mark.parametrize("name", ["PEAGLE_DRAIN_SECONDS", "PEAGLE_RESTARTS"])
@pytest.mark.parametrize("value", ["-1", "soon", "1.5", ""])
def test_a_setting_that_is_no_number_is_refused(run: Run, name: str, value: str) -> None:
    container = run("sleep()", **{name: value})

    assert container.ended() == 2
    assert name in container.told()[-1]["message"]


def test_much_output_is_neither_lost_nor_in_the_way(run: Run) -> None:
    container = run("print('line\\n' * 20000); sys.exit(1)")

    container.ended()

    assert sum(document["message"] == "line" for document in container.told()) == 20000
