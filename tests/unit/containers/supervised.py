"""The entrypoint as a process, with a fake engine that runs a test's code."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peagle.engine.process import free_port
from tests.unit.local.conftest import processes_with

CONTAINERS = Path(__file__).resolve().parents[3] / "containers"
RUN = """
import sys
import peagle_serve.supervisor
peagle_serve.supervisor.STOP_SECONDS = 0.5
from peagle_serve.command import main
main(["serve"])
"""
HEALTHY = "send('hello'); send('healthy');"


@dataclass
class Container:
    """One run of the entrypoint with the fake engine."""

    process: subprocess.Popen[bytes]
    folder: Path
    mark: str
    port: int
    begun: float = field(default_factory=time.monotonic)

    def entries(self) -> list[dict[str, Any]]:
        """The complete lines of the log so far."""
        lines = (self.folder / "log").read_bytes().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith(b"\n")]

    def wait_for(self, sought: str) -> dict[str, Any]:
        """The first line of the log with that event, or a line of the engine with that text."""
        end = time.monotonic() + 30
        while time.monotonic() < end:
            for document in self.entries():
                if document.get("event") == sought or (
                    "from" in document and sought in document["message"]
                ):
                    return document
            time.sleep(0.02)
        raise AssertionError(f"no {sought} in {self.entries()}")

    def stop(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def ended(self, seconds: float = 30) -> int:
        """Wait for the end; returns the exit code. No process may be left."""
        code = self.process.wait(seconds)
        assert processes_with(self.mark) == []
        return code

    def starts(self) -> list[int]:
        """The process ID of every start of the engine."""
        return [int(line) for line in (self.folder / "starts").read_text().split()]


Run = Callable[..., Container]


@contextmanager
def runs_in(tmp_path: Path) -> Iterator[Run]:
    """``run("sys.exit(1)")`` starts the entrypoint with an engine that runs this code."""
    package = tmp_path / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("fake_engine.py"), package / "api_server.py")
    (tmp_path / "vllm" / "__init__.py").touch()
    (tmp_path / "starts").touch()
    begun: list[Container] = []

    def start(how: str, **environment: str) -> Container:
        mark, port = f"mark-{time.monotonic_ns()}", free_port()
        variables = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{CONTAINERS}:{tmp_path}",
            "SM_VLLM_MODEL": "a/b",
            "SM_VLLM_HOST": "127.0.0.1",
            "SAGEMAKER_BIND_TO_PORT": str(port),
            "HOW": how,
            "STARTS": str(tmp_path / "starts"),
            "MARK": mark,
            **environment,
        }
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen([sys.executable, "-c", RUN], env=variables, stderr=log)
        begun.append(Container(process, tmp_path, mark, port))
        return begun[-1]

    try:
        yield start
    finally:
        for container in begun:
            container.process.kill()
            container.process.wait()
            for pid in processes_with(container.mark):
                os.kill(pid, signal.SIGKILL)
