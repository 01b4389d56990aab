"""Start, watch and end an engine with all its processes."""

import json
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from peagle.engine.logs import read_crash
from peagle.engine.machine import Engine
from peagle.engine.process import (
    EngineProcess,
    free_port,
    is_alive,
    is_healthy,
    is_port_free,
    start_engine,
    stop_engine,
)
from tests.unit.local.conftest import processes_with

Start = Callable[..., EngineProcess]


@pytest.fixture
def start(stand_in: Engine, tmp_path: Path) -> Iterator[Start]:
    """Start the stand-in; it is stopped after the test."""
    started: list[EngineProcess] = []

    def run(behavior: str = "", **environment: str) -> EngineProcess:
        variables = {"SM_VLLM_MODEL": "a/b", "SAGEMAKER_STAND_IN": behavior, **environment}
        log = tmp_path / "engine.log"
        started.append(start_engine(stand_in, variables, tmp_path, free_port(), log))
        return started[-1]

    yield run
    for process in started:
        stop_engine(process, 1)


def until(condition: Callable[[], object], seconds: float = 10) -> None:
    """Wait until the condition holds; fail after ``seconds``."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.02)


@pytest.mark.thorough
def test_an_engine_starts_answers_and_stops(start: Start) -> None:
    process = start()
    until(lambda: is_healthy(process.port))
    assert is_alive(process)
    stop_engine(process, 5)
    assert not is_alive(process)
    assert not is_healthy(process.port)
    assert is_port_free(process.port)


@pytest.mark.thorough
def test_it_gets_its_environment_and_no_secrets_of_the_parent(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("HF_TOKEN", "secret")
    process = start(SM_VLLM_X="50 % of 'it'")
    until(lambda: is_healthy(process.port))
    received = json.loads((tmp_path / "given.json").read_text())
    assert "secret" not in received["environment"].values()
    assert received["argv"][received["argv"].index("--x") + 1] == "50 % of 'it'"
    assert received["argv"][received["argv"].index("--host") + 1] == "127.0.0.1"
    assert received["argv"][received["argv"].index("--port") + 1] == str(process.port)


@pytest.mark.thorough
def test_an_engine_that_ignores_sigterm_is_killed_with_its_children(start: Start) -> None:
    mark = f"mark-{time.monotonic_ns()}"
    process = start("stubborn", MARK=mark)
    until(lambda: is_healthy(process.port))
    assert len(processes_with(mark)) == 3, "the entrypoint, the engine and its child"
    stop_engine(process, 0.2)
    assert processes_with(mark) == []


@pytest.mark.thorough
def test_a_dead_engine_is_noticed_at_once_and_leaves_no_zombie(start: Start) -> None:
    process = start("crash")
    until(lambda: not is_alive(process))
    assert read_crash(process.log).line == "ValueError: the head and the target are incompatible"
    assert not Path(f"/proc/{process.pid}").exists()


def test_another_process_with_the_same_pid_is_neither_alive_nor_stopped(start: Start) -> None:
    process = start()
    other = replace(process, started=process.started - 1)
    assert not is_alive(other)
    stop_engine(other, 0.1)
    assert is_alive(process)


def test_a_program_that_was_not_recorded_never_begins(stand_in: Engine, tmp_path: Path) -> None:
    recorded: list[EngineProcess] = []

    def record(process: EngineProcess) -> None:
        recorded.append(process)
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        start_engine(
            stand_in, {"SM_VLLM_MODEL": "a/b"}, tmp_path, 1, tmp_path / "log", record=record
        )
    until(lambda: not is_alive(recorded[0]))
    assert "serve:" not in (tmp_path / "log").read_text()


@pytest.mark.thorough
def test_a_starter_killed_before_recording_leaves_nothing(stand_in: Engine, tmp_path: Path) -> None:
    starter = textwrap.dedent("""
        import os, sys
        from pathlib import Path
        from peagle.engine.machine import Engine
        from peagle.engine.process import start_engine
        folder = Path(sys.argv[2])
        def record(process):
            (folder / "pid").write_text(f"{process.pid} {process.started}")
            os.kill(os.getpid(), 9)
        engine = Engine(Path(sys.argv[1]), "0.28.0")
        start_engine(engine, {"SM_VLLM_MODEL": "a/b"}, folder, 1, folder / "log", record=record)
    """)
    command = [sys.executable, "-c", starter, str(stand_in.python), str(tmp_path)]
    died = subprocess.run(command, check=False)
    assert died.returncode == -signal.SIGKILL
    pid, started = map(int, (tmp_path / "pid").read_text().split())
    until(lambda: not is_alive(EngineProcess(pid, started, 1, "")))
    assert "serve:" not in (tmp_path / "log").read_text()


def test_a_free_port_is_not_ephemeral_and_nothing_listens_on_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        monkeypatch.setattr("random.sample", lambda ports, count: [taken, *ports])
        port = free_port()
    assert port != taken
    assert port < 32_768
