"""The entrypoint with real vLLM, as a process on loopback."""

import http.client
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from peagle.data import data_folder, entrypoint_folder
from peagle.engine.machine import Engine
from peagle.engine.process import INHERITED_VARIABLES, free_port, session_members, start_time
from peagle_serve.contract import ATTRIBUTES_HEADER

TINY = data_folder("model_catalog") / "peagle" / "tiny"
SERVE = entrypoint_folder()
TILES = Path(__file__).parent / "tiles"
"""With it on PYTHONPATH vLLM chooses kernels as on a CPU with AMX tiles."""
CPU = {
    "SM_VLLM_ENFORCE_EAGER": "true",
    "SM_VLLM_DISTRIBUTED_EXECUTOR_BACKEND": "uni",
    "SM_VLLM_SERVED_MODEL_NAME": "tiny",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(TILES),
}
START_SECONDS = 240


def inherited() -> dict[str, str]:
    """The variables of this process that an engine gets, as ``peagle local`` starts it: engines
    with the same ones share what has imported vLLM."""
    variables = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    return {**variables, "PYTHONUNBUFFERED": "1"}


def script_environment() -> dict[str, str]:
    """The variables of a script that imports vLLM: those of an engine."""
    settings = {name: CPU[name] for name in ("HF_HUB_OFFLINE", "OMP_NUM_THREADS")}
    return {**inherited(), **settings, "PYTHONUTF8": "1", "PYTHONSAFEPATH": "1"}


class Container:
    """The entrypoint as a process, on loopback."""

    def __init__(self, engine: Engine, folder: Path, **environment: str) -> None:
        self.port = int(environment.get("SAGEMAKER_BIND_TO_PORT", free_port()))
        self.log = folder / "log"
        variables = {
            **inherited(),
            **CPU,
            "SM_VLLM_MODEL": str(TINY / "target"),
            "SM_VLLM_HOST": "127.0.0.1",
            "SAGEMAKER_BIND_TO_PORT": str(self.port),
            **environment,
        }
        command = [str(engine.python), str(SERVE), "serve"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, env=variables, stderr=log, stdout=log, start_new_session=True
            )
        self.since = start_time(self.process.pid) or 0

    def engine(self) -> int:
        """The process ID of vLLM."""
        while self.process.poll() is None:
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
            pids = children.read_text().split()
            if pids:
                return int(pids[0])
            time.sleep(0.02)
        raise AssertionError(f"the container ended: {self.log_lines()[-1]}")

    def log_lines(self) -> list[dict[str, Any]]:
        """The log so far; every line of it is JSON."""
        lines = self.log.read_bytes().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith(b"\n")]

    def ask(
        self, method: str, path: str, body: dict[str, Any] | None = None, attribute: str = ""
    ) -> tuple[int, bytes]:
        """Status and body; 0 while the port is closed. ``attribute``: its CustomAttributes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"Content-Type": "application/json"}
        headers |= {ATTRIBUTES_HEADER: attribute} if attribute else {}
        text = None if body is None else json.dumps(body)
        try:
            connection.request(method, path, text, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except ConnectionError:
            return 0, b""
        finally:
            connection.close()

    def wait_until_healthy(self) -> None:
        end = time.monotonic() + START_SECONDS
        while self.ask("GET", "/ping")[0] != 200:
            assert self.process.poll() is None, self.log_lines()[-1]
            assert time.monotonic() < end
            time.sleep(0.1)

    def ended_after_engine(self) -> tuple[int, float]:
        """The exit code, and the seconds from the end of the engine to that of the container."""
        engine = self.engine()
        while start_time(engine) is not None:
            time.sleep(0.02)
        begin = time.monotonic()
        return self.process.wait(30), time.monotonic() - begin

    def left(self) -> tuple[int, ...]:
        """Its processes that are still alive."""
        return session_members(self.process.pid, since=self.since)

    def end(self) -> None:
        for pid in self.left():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()


def speculation(head: Path, **more: Any) -> str:
    config = {"method": "eagle3", "model": str(head), "num_speculative_tokens": 5}
    return json.dumps({**config, "parallel_drafting": True, **more})
