"""A signal before the supervisor runs ends the entrypoint at once."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.containers.recording import SERVE
from tests.unit.containers.weights import model

UNSHARE = ["unshare", "--pid", "--fork", "--kill-child"]
IMPORTS = """
import os, runpy, signal, sys
class Slow:
    def find_spec(self, name, path, target=None):
        if name == "peagle_serve.command":
            os.kill(os.getpid(), signal.SIGTERM)
            raise AssertionError("the signal had no effect")
sys.meta_path.insert(0, Slow())
sys.path.insert(0, sys.argv[1])
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@contextmanager
def reading(folder: Path, *before: str) -> Iterator[subprocess.Popen[bytes]]:
    """The entrypoint while it waits for the rest of vLLM's source, a pipe. It reads no pipe among
    the model's files."""
    source = folder / "vllm" / "engine" / "arg_utils.py"
    server = folder / "vllm" / "entrypoints" / "openai" / "cli_args.py"
    for file in (source, server):
        file.parent.mkdir(parents=True)
    os.mkfifo(source)
    server.touch()
    (folder / "vllm" / "__init__.py").touch()
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(folder),
        "SM_VLLM_MODEL": str(model(folder / "model")),
    }
    command = [*before, sys.executable, str(SERVE), "serve"]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
    try:
        with give(source, process):
            yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def give(pipe: Path, process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Write one byte into the pipe, and wait until the reader blocks on the next."""
    until = time.monotonic() + 10
    writing = None
    while writing is None:
        with contextlib.suppress(OSError):  # no reader yet
            writing = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.01)
    os.write(writing, b"x")
    while waiting(writing) or state(entrypoint(process)) != "S":
        assert time.monotonic() < until
        time.sleep(0.01)
    try:
        yield
    finally:
        os.close(writing)


def waiting(pipe: int) -> int:
    """The number of unread bytes."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def entrypoint(process: subprocess.Popen[bytes]) -> int:
    """The process itself, or its child."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return int(children or process.pid)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_checking_ends_it_at_once_with_0(tmp_path: Path, number: int) -> None:
    with reading(tmp_path) as process:
        process.send_signal(number)
        reported = process.communicate(timeout=5)[1]

    assert process.returncode == 0
    (line,) = [json.loads(line) for line in reported.splitlines()]
    assert line["stage"] == "ended"
    assert {"time", "level", "message"} < set(line)


@pytest.mark.thorough
def test_a_signal_ends_the_first_process_of_a_container(tmp_path: Path) -> None:
    """The kernel sends it only signals that it handles."""
    tried = [*UNSHARE, "true"]
    if shutil.which("unshare") is None or subprocess.run(tried, capture_output=True).returncode:
        pytest.skip("only who may make process namespaces can be the first in one")
    with reading(tmp_path, *UNSHARE) as process:
        os.kill(entrypoint(process), signal.SIGTERM)

        assert process.wait(5) == 0


def test_the_handler_is_installed_before_anything_is_imported() -> None:
    command = [sys.executable, "-c", IMPORTS, str(SERVE)]

    done = subprocess.run(command, capture_output=True, check=False)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stderr)["stage"] == "ended"
