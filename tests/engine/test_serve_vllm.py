"""The entrypoint with real vLLM: it is healthy when it drafts, fails with a reason, and drains."""

import json
import os
import shutil
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from peagle.engine.machine import Engine
from peagle_serve.contract import WARM_ATTRIBUTE
from tests.engine.serving import TINY, Container, speculation

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def serving(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    """A healthy container with the tiny pair."""
    container = Container(
        engine,
        tmp_path_factory.mktemp("serving"),
        SM_VLLM_SPECULATIVE_CONFIG=speculation(TINY / "p-eagle"),
        SM_VLLM_API_KEY="a-key-of-ours",
    )
    try:
        container.wait_until_healthy()
        yield container
    finally:
        container.end()


@pytest.fixture
def failing(engine: Engine, tmp_path: Path) -> Iterator[Any]:
    """``failing(SM_VLLM_...=...)``: a container that ends by itself."""
    begun: list[Container] = []

    def run(**environment: str) -> Container:
        begun.append(Container(engine, tmp_path, **environment))
        return begun[-1]

    yield run
    for container in begun:
        container.end()


def test_caches_are_refused_unless_the_engine_collects(serving: Container) -> None:
    status, body = serving.ask("POST", "/invocations", {}, attribute=WARM_ATTRIBUTE)
    assert status == 403
    assert "PEAGLE_WARM=collect" in json.loads(body)["error"]


def completion(tokens: int) -> dict[str, Any]:
    return {
        "prompt": "def a_prompt_that_nobody_logs(", "max_tokens": tokens, "temperature": 0,
        "ignore_eos": True, "stream": True,
    }  # fmt: skip


def test_it_is_healthy_only_after_it_has_drafted(serving: Container) -> None:
    status, page = serving.ask("GET", "/metrics")
    assert status == 200
    drafts = [line for line in page.decode().splitlines() if "num_drafts_total{" in line]
    assert sum(float(line.rpartition(" ")[2]) for line in drafts) > 0
    (healthy,) = [entry for entry in serving.log_lines() if entry.get("event") == "healthy"]
    pings = [entry for entry in serving.log_lines() if "GET /ping" in entry["message"]]
    assert all("503" in entry["message"] for entry in pings if entry["time"] < healthy["time"])


def test_every_line_is_json_with_time_level_and_stage_and_without_secrets(
    serving: Container,
) -> None:
    assert serving.ask("POST", "/invocations", completion(8))[0] == 200
    reported = serving.log_lines()
    assert all({"time", "level", "stage", "message"} <= set(line) for line in reported)
    assert {line["stage"] for line in reported} >= {"starting", "serving"}
    assert any(line.get("place", "").startswith("launcher.py") for line in reported)
    text = serving.log.read_text(encoding="utf-8")
    assert "a-key-of-ours" not in text
    assert "nobody_logs" not in text


def test_a_killed_engine_is_restarted_and_drafts_again(serving: Container) -> None:
    killed = serving.engine()
    os.kill(killed, signal.SIGKILL)
    while serving.ask("GET", "/ping")[0] == 200:
        time.sleep(0.05)
    serving.wait_until_healthy()
    assert serving.engine() != killed
    assert any(line.get("event") == "restart" for line in serving.log_lines())


def test_sigterm_finishes_a_stream_refuses_new_requests_and_exits_with_0(
    serving: Container,
) -> None:
    answers: list[tuple[int, bytes]] = []
    ask = ("POST", "/invocations", completion(600))
    stream = threading.Thread(target=lambda: answers.append(serving.ask(*ask)))
    stream.start()
    while b"running{" not in (page := serving.ask("GET", "/metrics")[1]) or not any(
        line.startswith("vllm:num_requests_running{") and line.endswith(" 1.0")
        for line in page.decode().splitlines()
    ):
        assert serving.process.poll() is None, serving.log_lines()[-1]
        time.sleep(0.05)
    serving.process.send_signal(signal.SIGTERM)
    while not any(line.get("event") == "drain" for line in serving.log_lines()):
        assert serving.process.poll() is None, serving.log_lines()[-1]
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


def test_wrong_weights_of_the_head_end_the_container_with_that_cause(
    failing: Any, tmp_path: Path
) -> None:
    head = shutil.copytree(TINY / "p-eagle", tmp_path / "head")
    misshape(head / "model.safetensors", "norm.weight", [128, 2])
    container = failing(SM_VLLM_SPECULATIVE_CONFIG=speculation(head))
    code, seconds = container.ended_after_engine()
    last = container.log_lines()[-1]
    assert (code, last["exit_code"]) == (1, 1)
    assert seconds < 5
    assert last["cause"] == "head-does-not-fit"
    assert "the head was trained for a different target" in last["fix"]
    assert container.left() == ()


def test_a_value_that_vllms_parser_refuses_ends_the_container_with_that_cause(failing: Any) -> None:
    container = failing(SM_VLLM_DTYPE="float7")
    code, seconds = container.ended_after_engine()
    last = container.log_lines()[-1]
    assert code == 2
    assert seconds < 5
    assert last["cause"] == "unknown-argument"
    assert "--dtype: invalid choice: 'float7'" in last["message"]


@pytest.mark.parametrize(("environment", "what"), [
    ({"SM_VLLM_SPECULATIVE_CONFIG": speculation(TINY / "eagle3")}, "eagle3-as-p-eagle"),
    ({"SM_VLLM_MAX_NUM_SEQ": "8"}, "did you mean SM_VLLM_MAX_NUM_SEQS?"),
    ({"SM_VLLM_MODEL": str(TINY)}, "has no config.json"),
])  # fmt: skip
def test_errors_known_before_vllm_starts_are_reported_at_once(
    failing: Any, environment: dict[str, str], what: str
) -> None:
    begin = time.monotonic()
    container = failing(**environment)
    assert container.process.wait(10) == 2
    assert time.monotonic() - begin < 3
    (output,) = container.log_lines()
    assert what in f"{output['message']} {output['fix']}"


def test_a_port_in_use_is_reported_with_its_cause(failing: Any) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        container = failing(SAGEMAKER_BIND_TO_PORT=str(port))
        assert container.process.wait(120) == 1
    assert container.log_lines()[-1]["cause"] == "port-in-use"


def misshape(file: Path, tensor: str, shape: list[int]) -> None:
    """Give a tensor another shape with as many elements."""
    content = file.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    header[tensor]["shape"] = shape
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])
