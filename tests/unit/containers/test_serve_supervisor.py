"""The entrypoint supervises the engine: it logs its output, restarts it, and ends with it."""

from __future__ import annotations

import os
import signal
import socket
import time

import pytest

from tests.unit.containers.supervised import HEALTHY, Run
from tests.unit.local.conftest import processes_with

pytestmark = pytest.mark.thorough

SECRET = "hf_" + "a1B2c3D4" * 4
OUT_OF_MEMORY = "raise RuntimeError('CUDA out of memory. Tried to allocate 20 GiB')"


def test_a_crash_at_start_ends_the_container_with_cause_and_fix(run: Run) -> None:
    container = run(f"print('loading'); {OUT_OF_MEMORY}")

    assert container.ended(5) == 1
    last = container.entries()[-1]
    assert (last["level"], last["stage"], last["exit_code"]) == ("ERROR", "ended", 1)
    assert last["cause"] == "out-of-memory"
    assert "CUDA out of memory. Tried to allocate 20 GiB" in last["message"]
    assert "--gpu-memory-utilization" in last["fix"]
    assert len(container.starts()) == 1, "an engine that never was healthy is not restarted"


def test_a_child_that_lingers_delays_the_end_by_less_than_5_seconds(run: Run) -> None:
    container = run("linger(); os._exit(3)")

    assert container.ended(5) == 3
    assert "exit code 3" in container.entries()[-1]["message"]


def test_a_killed_engine_is_reported(run: Run) -> None:
    container = run("os.kill(os.getpid(), 9)")

    assert container.ended(5) == 128 + signal.SIGKILL
    assert container.entries()[-1]["cause"] == "killed"
    assert "memory" in container.entries()[-1]["fix"]


def test_an_engine_that_exits_with_0_is_a_failure(run: Run) -> None:
    assert run("pass").ended(5) == 1


def test_a_healthy_engine_is_restarted_up_to_a_limit(run: Run) -> None:
    container = run(f"{HEALTHY} {OUT_OF_MEMORY}", PEAGLE_RESTARTS="2")

    assert container.ended() == 1
    assert len(container.starts()) == 3
    first, second = [line for line in container.entries() if line.get("event") == "restart"]
    assert (first["restarts"], second["restarts"], first["limit"]) == (1, 2, 2)
    assert first["cause"] == "out-of-memory"
    assert "CUDA out of memory" in first["reason"]
    last = container.entries()[-1]
    assert (last["event"], last["cause"], last["restarts"]) == ("crash", "out-of-memory", 2)


def test_the_log_has_the_time_to_healthy(run: Run) -> None:
    how = "assert time.monotonic() - float(os.environ['PEAGLE_ENGINE_STARTED']) < 10;"
    container = run(f"sleep(0.3); {how} {HEALTHY} sys.exit(1)", PEAGLE_RESTARTS="0")

    assert container.ended() == 1
    assert 0.3 <= container.wait_for("healthy")["seconds"] < 10


def test_a_restart_that_fails_at_start_is_the_last(run: Run) -> None:
    container = run(f"START > 1 and sys.exit(4); {HEALTHY} sys.exit(1)")

    assert container.ended() == 4
    assert len(container.starts()) == 2


def test_a_restarted_engine_serves(run: Run) -> None:
    how = f"{HEALTHY} sleep(0.2); print('start', START, flush=True); START > 1 and sleep(); exit(1)"
    container = run(how, PEAGLE_DRAIN_SECONDS="0")
    assert container.wait_for("start 2")["stage"] == "serving"

    container.stop()

    assert container.ended() == 0


def test_a_port_that_another_program_takes_before_a_restart_ends_the_container(run: Run) -> None:
    container = run(f"{HEALTHY} receive()")
    container.wait_for("healthy")
    port = container.port
    with socket.create_server(("127.0.0.1", port)):
        os.kill(container.starts()[0], signal.SIGKILL)

        assert container.ended(5) != 0

    assert len(container.starts()) == 1
    last = container.entries()[-1]
    assert last["cause"] == "environment"
    assert f"cannot start the engine: port {port} is in use" in last["message"]
    assert "another port" in last["fix"]


def test_a_drafter_that_does_not_draft_ends_the_container_at_once(run: Run) -> None:
    container = run("send('hello'); send('failed speculation without a draft'); sleep()")

    assert container.ended(5) != 0
    last = container.entries()[-1]
    assert last["cause"] == "no-drafts"
    assert "speculation without a draft" in last["message"]


def test_orphans_leave_no_zombies(run: Run) -> None:
    container = run(f"{HEALTHY} linger(); print('begun', flush=True); sleep()")
    container.wait_for("begun")
    (child,) = set(processes_with(container.mark)) - {container.process.pid, *container.starts()}

    os.kill(container.starts()[0], signal.SIGKILL)

    container.wait_for("restart")
    until = time.monotonic() + 10
    while child in processes_with(container.mark):
        assert time.monotonic() < until
        time.sleep(0.02)
    container.stop()
    assert container.ended(5) == 0


def test_a_port_in_use_is_refused_before_the_engine_starts(run: Run) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]

        container = run("sleep()", SAGEMAKER_BIND_TO_PORT=str(port))

        assert container.ended(5) == 2
    assert f"port {port} is in use" in container.entries()[-1]["message"]
    assert container.starts() == []


def test_the_engines_output_is_logged_without_secrets(run: Run) -> None:
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


def test_a_secret_in_the_error_is_redacted(run: Run) -> None:
    container = run(f"raise ValueError('bad token {SECRET}')")
    container.ended()

    assert container.entries()[-1]["message"] == "the engine exited: ValueError: bad token ***"


@pytest.mark.parametrize("name", ["PEAGLE_DRAIN_SECONDS", "PEAGLE_RESTARTS"])
@pytest.mark.parametrize("value", ["-1", "soon", "1.5", ""])
def test_an_invalid_number_in_a_setting_is_refused(run: Run, name: str, value: str) -> None:
    container = run("sleep()", **{name: value})

    assert container.ended() == 2
    assert name in container.entries()[-1]["message"]


def test_long_output_is_logged_completely(run: Run) -> None:
    container = run("print('line\\n' * 20000); sys.exit(1)")

    container.ended()

    assert sum(document["message"] == "line" for document in container.entries()) == 20000
