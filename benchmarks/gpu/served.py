"""One start of ``containers/serve``, as SageMaker starts it, with the times that it took.

Times are seconds from the start of the entrypoint. ``green``: ``/ping`` answers 200, so the drafter
has drafted. ``init engine`` and the rest are what vLLM says of itself in the log.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.logs import logged

SERVE = Path(__file__).resolve().parents[2] / "containers" / "serve"
END_SECONDS = 40.0
_POLL_SECONDS = 0.1
_IDLE_GPU_MIB = 3000
_TOLD = re.compile(
    r"warm start|collecting|starting vLLM|healthy|\btook\b|[Cc]ompil|[Cc]aptur|KV cache size"
    r"|Loading|[Dd]irectly load|the engine ended|told to"
)
_NOT_PASSED_ON = re.compile(
    r"AWS_|SM_VLLM_|HF_TOKEN|PEAGLE_|VLLM_CACHE_ROOT$|TRITON_CACHE_DIR$|TORCHINDUCTOR_CACHE_DIR$"
    r"|XDG_CACHE_HOME$|HOME$|TMPDIR$"
)
ANSWER = {"prompt": "def main(", "max_tokens": 64, "temperature": 0, "ignore_eos": True}


class NotGreen(Exception):
    """The container ended, or the time was over, before it was ready. The text says which."""


class Served:
    """A container that runs as a process. ``end`` it, whatever happens."""

    def __init__(
        self,
        python: str,
        environment: Mapping[str, str],
        log: Path,
        cpus: Sequence[int] = (),
    ) -> None:
        self.port = _free_port()
        self.given = {
            **{name: value for name, value in os.environ.items() if not _NOT_PASSED_ON.match(name)},
            "SM_VLLM_HOST": "127.0.0.1",
            "SAGEMAKER_BIND_TO_PORT": str(self.port),
            **environment,
        }
        self.log = log
        self.begin = time.monotonic()
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [python, str(SERVE), "serve"],
                env=self.given,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        if cpus:
            os.sched_setaffinity(self.process.pid, cpus)

    def until_green(self, seconds: float) -> float:
        """Seconds until ``/ping`` was green. Raises NotGreen."""
        while time.monotonic() - self.begin < seconds:
            if self.process.poll() is not None:
                raise NotGreen(f"ended with {self.process.returncode}: {self.last_words()}")
            with contextlib.suppress(OSError):
                if self.ask("GET", "/ping")[0] == 200:
                    return round(time.monotonic() - self.begin, 2)
            time.sleep(_POLL_SECONDS)
        raise NotGreen(f"not ready after {seconds:.0f} s: {self.last_words()}")

    def first_answer(self) -> float:
        """Seconds for 64 tokens: kernels that are compiled when they are first needed show here."""
        begin = time.monotonic()
        status, body = self.ask("POST", "/invocations", json.dumps(ANSWER).encode())
        if status != 200:
            raise NotGreen(f"the first request was answered {status}: {body[:300]!r}")
        return round(time.monotonic() - begin, 3)

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Status and body of an answer. Raises OSError while nobody listens."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            kind = {"Content-Type": "application/json"}
            connection.request(method, path, body or None, {**kind, **(headers or {})})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except http.client.HTTPException as error:
            raise ConnectionError(str(error)) from error
        finally:
            connection.close()

    def engine_variables(self) -> dict[str, str]:
        """What the engine was given beside what the container was: where its caches are."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        raw = Path(f"/proc/{children.split()[0]}/environ").read_bytes()
        pairs = (part.partition(b"=") for part in raw.split(b"\0") if part)
        variables = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
        return {
            name: value
            for name, value in variables.items()
            if self.given.get(name) != value and not name.startswith(("PYTHON", "PEAGLE_"))
        }

    def told(self) -> list[dict[str, Any]]:
        """The log so far."""
        lines = self.log.read_bytes().splitlines()
        found = []
        for line in lines:
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return [one for one in found if isinstance(one, dict)]

    def last_words(self) -> str:
        """The last line of the log, cut short."""
        told = self.told()
        return json.dumps(told[-1])[:600] if told else "without a word"

    def end(self) -> None:
        """As SageMaker ends it: SIGTERM; what is left of it after a while is killed."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(END_SECONDS)
        for pid in _session(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def facts(told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a log says of the start: vLLM's own numbers, the entrypoint's, and the lines."""
    messages = [str(one.get("message", "")) for one in told]
    text = "\n".join(messages)
    found: dict[str, Any] = {"engine": logged(text)}
    if match := re.search(r"restored .*? in ([\d.]+) s", text):
        found["restore_seconds"] = float(match[1])
    for one in told:
        if one.get("message") == "the engine is healthy" and "seconds" in one:
            found["healthy_seconds"] = one["seconds"]
    if match := re.search(r"init engine .*?\(compilation: ([\d.]+) s\)", text):
        found["engine"]["compilation_seconds"] = float(match[1])
    kept = [one for one in told if _TOLD.search(str(one.get("message", "")))]
    found["log"] = [f"{one.get('time', '')} {str(one['message'])[:240]}" for one in kept][:80]
    return found


def wait_for_idle(gpu: str, seconds: float = 30) -> None:
    """Return when the engine before has left the GPU, as the driver counts its memory."""
    end = time.monotonic() + seconds
    query = ["nvidia-smi", "-i", gpu, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    while time.monotonic() < end:
        said = subprocess.run(query, capture_output=True, text=True)
        if said.returncode != 0 or int(said.stdout.split()[0]) < _IDLE_GPU_MIB:
            return
        time.sleep(0.3)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _session(leader: int) -> list[int]:
    """The living processes of a session; proc_pid_stat(5)."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] not in "ZX":
                found.append(int(stat.parent.name))
    return found
