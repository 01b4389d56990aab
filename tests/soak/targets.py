"""What a soaked target is, the fake engine, and how an engine is killed."""

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import psutil

from peagle.engine.machine import Engine
from peagle.engine.process import is_healthy
from peagle_serve.contract import RESTARTS_VARIABLE
from tests.soak.streams import Events

VLLM = "0.28.0"
SILENCE_SECONDS = 30.0
"""A stream without data for that long is silent."""
START_SECONDS = 300.0
"""Until an engine is healthy, or an endpoint is stable."""
RESTARTS = {RESTARTS_VARIABLE: "1000000"}
"""A container ends after a few crashes of its engine; here its engine is killed all day."""
_WRAPPER = """#!{python}
import os, sys
if "-c" in sys.argv:
    print({vllm!r})
else:
    path = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = {packages!r} + (os.pathsep + path if path else "")
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
"""


class Target(Protocol):
    """What clients stream from. ``acts`` disturb it, one at a time and in random order, and record
    themselves in ``events``; ``routes`` are for ``stream``, a ``streams.Stream``."""

    name: str
    routes: tuple[str, ...]
    events: Events
    refuses_in_drain: bool

    def start(self) -> None: ...
    def stream(self, route: str, body: bytes) -> Iterator[bytes]: ...
    def acts(self) -> tuple[Callable[[random.Random], None], ...]: ...
    def processes(self) -> dict[str, list[int]]: ...
    def end(self) -> None: ...


def stub_engine(folder: Path) -> Engine:
    """A Python whose vLLM is ``engine.py``."""
    packages = folder / "packages"
    package = packages / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("engine.py"), package / "api_server.py")
    (packages / "torch-2.0.0+cpu.dist-info").mkdir()  # the entrypoint recognizes a CPU by it
    python = folder / "python"
    values = {"python": sys.executable, "packages": str(packages), "vllm": VLLM}
    python.write_text(_WRAPPER.format(**values))
    python.chmod(0o755)
    return Engine(python, VLLM)


def children(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.Error:
        return []


def kill_engine(events: Events, supervisor: int, chance: random.Random) -> None:
    """Kill one process of the engine that ``supervisor`` runs; return when another one serves."""
    (engine,) = children(supervisor)
    port = read_port(engine)
    with events.during("kill"):
        events.killed.add(engine)
        os.kill(chance.choice([engine, *children(engine)]), signal.SIGKILL)
        until = time.monotonic() + START_SECONDS
        while engine in children(supervisor) and time.monotonic() < until:
            time.sleep(0.02)
        wait_until_healthy(port, supervisor)


def read_port(engine: int) -> int:
    command = psutil.Process(engine).cmdline()
    return int(command[command.index("--port") + 1])


def wait_until_healthy(port: int, supervisor: int) -> None:
    """Raises AssertionError where the container ends, or is not healthy in time."""
    until = time.monotonic() + START_SECONDS
    while not is_healthy(port):
        assert psutil.pid_exists(supervisor), f"container {supervisor} ended"
        assert time.monotonic() < until, f"container {supervisor} is not healthy"
        time.sleep(0.05)
