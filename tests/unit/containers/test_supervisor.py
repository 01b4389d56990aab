"""The entrypoint supervises the engine: it logs its output, restarts it, drains it, and ends."""

import os
import signal
import time

import pytest

from tests.unit.containers.supervised import HEALTHY, Run
from tests.unit.local.conftest import processes_with

pytestmark = pytest.mark.thorough
SECRET = "hf_" + "a1B2c3D4" * 4
OUT_OF_MEMORY = "raise RuntimeError('CUDA out of memory. Tried to allocate 20 GiB')"


@pytest.mark.parametrize(("how", "code", "cause", "words"), [
    (f"print('loading'); {OUT_OF_MEMORY}", 1, "out-of-memory", "Tried to allocate 20 GiB"),
    ("linger(); os._exit(3)", 3, "unknown", "exit code 3, without a message"),
    ("os.kill(os.getpid(), 9)", 128 + signal.SIGKILL, "killed", "killed by SIGKILL"),
    ("pass", 1, "unknown", "exit code 0"),
    ("send('hello'); send('failed no draft'); sleep()", 128 + signal.SIGTERM, "no-drafts",
     "no draft"),
    (f"raise ValueError('bad token {SECRET}')", 1, "unknown", "ValueError: bad token ***")
], ids=["memory", "a child lingers", "killed", "exits with 0", "no drafts", "secret"])  # fmt: skip
def test_a_crash_at_start_ends_the_container_with_cause_and_fix(
    run: Run, how: str, code: int, cause: str, words: str
) -> None:
    container = run(how)
    assert container.ended(5) == code
    last = container.entries()[-1]
    assert (last["level"], last["stage"], last["exit_code"]) == ("ERROR", "ended", code)
    assert (last["cause"], last["message"]) == (cause, f"the engine exited: {last['reason']}")
    assert words in last["reason"]
    assert last["fix"]
    assert len(container.starts()) == 1, "an engine that never was healthy is not restarted"


def test_a_healthy_engine_is_restarted_up_to_a_limit(run: Run) -> None:
    how = "assert time.monotonic() - float(os.environ['PEAGLE_ENGINE_STARTED']) < 10;"
    container = run(f"sleep(0.3); {how} {HEALTHY} {OUT_OF_MEMORY}", PEAGLE_RESTARTS="2")
    assert container.ended() == 1
    assert len(container.starts()) == 3
    first, second = [line for line in container.entries() if line.get("event") == "restart"]
    assert (first["restarts"], second["restarts"], first["limit"]) == (1, 2, 2)
    assert first["cause"] == "out-of-memory"
    assert "CUDA out of memory" in first["reason"]
    last = container.entries()[-1]
    assert (last["event"], last["cause"], last["restarts"]) == ("crash", "out-of-memory", 2)
    healthy = [line for line in container.entries() if line.get("event") == "healthy"]
    assert 0.3 <= healthy[0]["seconds"] < 10


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


def test_the_engines_output_is_logged_completely_and_without_secrets(run: Run) -> None:
    container = run(
        f"print('token {SECRET} and my-own-secret'); print(('line ' * 99 + 'x\\n') * 500);"
        "print('no end', end=''); sys.exit(1)",
        SM_VLLM_API_KEY="my-own-secret",
    )
    container.ended()
    assert container.wait_for("token")["message"] == "token *** and ***"
    assert container.wait_for("no end")["from"] == "engine"
    lines = [document["message"] for document in container.entries()]
    assert lines.count("line " * 99 + "x") == 500, "more than a pipe holds"
    log = (container.folder / "log").read_text()
    assert SECRET not in log
    assert "my-own-secret" not in log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_engine_finish_its_requests(run: Run, number: int) -> None:
    container = run(
        f"{HEALTHY} assert receive() == 'drain'; sleep(0.5); print('answered', flush=True);"
        "send('idle'); sleep()"
    )
    container.wait_for("healthy")
    container.stop(number)
    assert container.ended() == 0
    entries = container.entries()
    messages = [document["message"] for document in entries]
    assert messages.index("answered") < messages.index("all requests are answered")
    assert entries[messages.index("answered")]["stage"] == "draining"
    assert (entries[-1]["level"], entries[-1]["stage"]) == ("INFO", "ended")


def test_draining_has_a_limit(run: Run) -> None:
    container = run(f"{HEALTHY} sleep()", PEAGLE_DRAIN_SECONDS="1")
    container.wait_for("healthy")
    begin = time.monotonic()
    container.stop()
    assert container.ended() == 0
    assert 1 <= time.monotonic() - begin < 4
    container.wait_for("cut-off")


def test_a_second_signal_stops_at_once(run: Run) -> None:
    container = run(f"{HEALTHY} sleep()")
    container.wait_for("healthy")
    container.stop()
    container.wait_for("drain")
    container.stop()
    assert container.ended(5) == 0


@pytest.mark.parametrize("before", ["", HEALTHY])
def test_an_engine_that_ignores_signals_is_killed_with_its_children(run: Run, before: str) -> None:
    container = run(f"ignore_sigterm(); linger(); {before} print('begun', flush=True); sleep()",
                    PEAGLE_DRAIN_SECONDS="0")  # fmt: skip
    container.wait_for("begun")
    container.stop()
    assert container.ended(5) == 0


def test_a_signal_during_start_up_ends_it(run: Run) -> None:
    container = run("print('loading', flush=True); sleep()")
    container.wait_for("loading")
    container.stop()
    assert container.ended(5) == 0
