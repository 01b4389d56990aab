"""The entrypoint with real vLLM: it fails with a reason, is ready when it drafts, and drains."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from toolkit.data import data_folder
from toolkit.errors import EngineMissing
from toolkit.local import table
from toolkit.local.engine import Engine, find_engine
from toolkit.local.process import free_port

pytestmark = pytest.mark.engine

TINY = data_folder("model_catalog") / "peagle" / "tiny"
SERVE = data_folder("containers") / "serve"
CPU = {
    "SM_VLLM_ENFORCE_EAGER": "true",
    "SM_VLLM_DISTRIBUTED_EXECUTOR_BACKEND": "uni",
    "SM_VLLM_SERVED_MODEL_NAME": "tiny",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
START_SECONDS = 240


class Container:
    """The entrypoint as a process, on loopback."""

    def __init__(self, engine: Engine, folder: Path, **environment: str) -> None:
        self.port = int(environment.get("SAGEMAKER_BIND_TO_PORT", free_port()))
        self.log = folder / "log"
        variables = {
            **{
                name: os.environ[name]
                for name in ("PATH", "HOME", "LD_PRELOAD")
                if name in os.environ
            },
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
        self.since = table.start_of(self.process.pid) or 0

    def engine(self) -> int:
        """The process id of vLLM."""
        while self.process.poll() is None:
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
            found = children.read_text().split()
            if found:
                return int(found[0])
            time.sleep(0.02)
        raise AssertionError(f"it ended: {self.told()[-1]}")

    def told(self) -> list[dict[str, Any]]:
        """The log so far; every line of it is JSON."""
        lines = self.log.read_bytes().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith(b"\n")]

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
        """Status and body; 0 while nobody listens."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"Content-Type": "application/json"}
        try:
            connection.request(method, path, json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except ConnectionError:
            return 0, b""
        finally:
            connection.close()

    def wait_until_green(self) -> list[int]:
        """All that ``/ping`` answered until it was green."""
        seen: list[int] = []
        end = time.monotonic() + START_SECONDS
        while not seen or seen[-1] != 200:
            assert self.process.poll() is None, self.told()[-1]
            assert time.monotonic() < end
            seen.append(self.ask("GET", "/ping")[0])
            time.sleep(0.1)
        return seen

    def ended_after_engine(self) -> tuple[int, float]:
        """The exit code, and how many seconds after the engine's own end it came."""
        engine = self.engine()
        while table.start_of(engine) is not None:
            time.sleep(0.02)
        begin = time.monotonic()
        return self.process.wait(30), time.monotonic() - begin

    def left(self) -> tuple[int, ...]:
        """Its processes that still live."""
        return table.session(self.process.pid, since=self.since)

    def end(self) -> None:
        for pid in self.left():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()


def speculation(head: Path, **more: Any) -> str:
    config = {"method": "eagle3", "model": str(head), "num_speculative_tokens": 5}
    return json.dumps({**config, "parallel_drafting": True, **more})


@pytest.fixture(scope="module")
def engine() -> Engine:
    try:
        return find_engine("0.28.0")
    except EngineMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def serving(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    """The tiny pair, ready."""
    container = Container(
        engine,
        tmp_path_factory.mktemp("serving"),
        SM_VLLM_SPECULATIVE_CONFIG=speculation(TINY / "p-eagle"),
        SM_VLLM_API_KEY="a-key-of-ours",
    )
    try:
        container.wait_until_green()
        yield container
    finally:
        container.end()


@pytest.fixture
def failing(engine: Engine, tmp_path: Path) -> Iterator[Any]:
    """``failing(SM_VLLM_...=...)``: a container that is going to end by itself."""
    begun: list[Container] = []

    def run(**environment: str) -> Container:
        begun.append(Container(engine, tmp_path, **environment))
        return begun[-1]

    yield run
    for container in begun:
        container.end()


def completion(tokens: int) -> dict[str, Any]:
    return {
        "prompt": "def a_prompt_that_nobody_logs(",
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }


def test_it_is_green_only_after_it_has_drafted(serving: Container) -> None:
    status, page = serving.ask("GET", "/metrics")

    assert status == 200
    drafts = [line for line in page.decode().splitlines() if "num_drafts_total{" in line]
    assert sum(float(line.rpartition(" ")[2]) for line in drafts) > 0
    (healthy,) = [one for one in serving.told() if one["message"] == "the engine is healthy"]
    pings = [one for one in serving.told() if "GET /ping" in one["message"]]
    assert all("503" in one["message"] for one in pings if one["time"] < healthy["time"])


def test_every_line_is_json_with_time_level_and_stage_and_holds_no_secret(
    serving: Container,
) -> None:
    assert serving.ask("POST", "/invocations", completion(8))[0] == 200

    told = serving.told()

    assert all({"time", "level", "stage", "message"} <= set(line) for line in told)
    assert {line["stage"] for line in told} >= {"starting", "serving"}
    assert any(line.get("place", "").startswith("launcher.py") for line in told)
    text = serving.log.read_text(encoding="utf-8")
    assert "a-key-of-ours" not in text
    assert "nobody_logs" not in text


def test_an_engine_that_is_killed_is_started_again_and_drafts_again(serving: Container) -> None:
    killed = serving.engine()

    os.kill(killed, signal.SIGKILL)
    while serving.ask("GET", "/ping")[0] == 200:
        time.sleep(0.05)
    serving.wait_until_green()

    assert serving.engine() != killed
    assert any("started again (1 of 3" in line["message"] for line in serving.told())


def test_sigterm_lets_a_stream_finish_refuses_what_is_new_and_ends_with_0(
    serving: Container,
) -> None:
    answers: list[tuple[int, bytes]] = []
    ask = ("POST", "/invocations", completion(1200))
    stream = threading.Thread(target=lambda: answers.append(serving.ask(*ask)))
    stream.start()
    while b"running{" not in (page := serving.ask("GET", "/metrics")[1]) or not any(
        line.startswith("vllm:num_requests_running{") and line.endswith(" 1.0")
        for line in page.decode().splitlines()
    ):
        time.sleep(0.05)

    serving.process.send_signal(signal.SIGTERM)
    while not any("told to end" in line["message"] for line in serving.told()):
        time.sleep(0.02)
    time.sleep(0.2)

    assert serving.ask("POST", "/invocations", completion(8))[0] == 503
    assert serving.ask("GET", "/ping")[0] == 503
    assert not answers, "the stream still runs"
    stream.join(60)
    assert answers[0][0] == 200
    assert answers[0][1].endswith(b"data: [DONE]\n\n")
    assert b'"finish_reason":"length"' in answers[0][1]
    assert serving.process.wait(30) == 0
    assert serving.left() == ()


def test_a_head_whose_weights_are_wrong_ends_it_with_that_cause(
    failing: Any, tmp_path: Path
) -> None:
    head = shutil.copytree(TINY / "p-eagle", tmp_path / "head")
    misshape(head / "model.safetensors", "norm.weight", [128, 2])

    container = failing(SM_VLLM_SPECULATIVE_CONFIG=speculation(head))

    code, seconds = container.ended_after_engine()
    last = container.told()[-1]
    assert (code, last["exit_code"]) == (1, 1)
    assert seconds < 5
    assert last["cause"] == "head-does-not-fit"
    assert "the head does not belong to this target" in last["fix"]
    assert container.left() == ()


def test_a_value_that_vllms_parser_does_not_take_ends_it_with_that_cause(failing: Any) -> None:
    container = failing(SM_VLLM_DTYPE="float7")

    code, seconds = container.ended_after_engine()
    last = container.told()[-1]
    assert code == 2
    assert seconds < 5
    assert last["cause"] == "unknown-argument"
    assert "--dtype: invalid choice: 'float7'" in last["message"]


@pytest.mark.parametrize(
    ("environment", "what"),
    [
        ({"SM_VLLM_SPECULATIVE_CONFIG": speculation(TINY / "eagle3")}, "it has no mask_hidden"),
        ({"SM_VLLM_MAX_NUM_SEQ": "8"}, "meant SM_VLLM_MAX_NUM_SEQS?"),
        ({"SM_VLLM_ENABLE_TOOLS": "true"}, "is not an argument of this vLLM"),
        ({"SM_VLLM_MODEL": str(TINY)}, "has no config.json"),
    ],
)
def test_what_can_be_known_before_vllm_starts_is_said_at_once(
    failing: Any, environment: dict[str, str], what: str
) -> None:
    begin = time.monotonic()
    container = failing(**environment)

    assert container.process.wait(10) == 2
    assert time.monotonic() - begin < 3
    (said,) = container.told()
    assert what in f"{said['message']} {said['fix']}"


def test_a_port_in_use_is_said_at_once(failing: Any) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]

        container = failing(SAGEMAKER_BIND_TO_PORT=str(port))

        assert container.process.wait(10) == 2
    assert f"port {port} is in use" in container.told()[-1]["message"]


def misshape(file: Path, tensor: str, shape: list[int]) -> None:
    """Give a tensor another shape of as many elements."""
    content = file.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    header[tensor]["shape"] = shape
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])
