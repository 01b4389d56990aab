"""`peagle local` with real vLLM: start, streamed answers, counters, and stop."""

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from peagle.catalog import load_catalog
from peagle.data import data_folder
from peagle.engine import local
from peagle.engine import state as records
from peagle.engine.local import start_local
from peagle.engine.machine import Engine
from peagle.engine.process import EngineProcess, is_alive, session_members
from peagle.errors import EngineError
from peagle.planning import Options, make_plan
from peagle.protocol import EventSplitter, acceptance_length, parse_piece, pieces, request_body
from tests.support import Peagle, raises_code

pytestmark = pytest.mark.engine
NAME = "local-test"
QUESTION = "What does textwrap.wrap do?"
HELD_OUT = json.loads((data_folder("model_catalog") / "peagle/tiny/prompts.json").read_text())[:8]
"""Some of the held-out prompts."""


@pytest.fixture(scope="module", autouse=True)
def own_place(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A home for this module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PEAGLE_HOME", str(tmp_path_factory.mktemp("local")))
        yield


@pytest.fixture(scope="module")
def running(peagle: Peagle) -> Iterator[dict[str, Any]]:
    """What ``peagle local up tiny --json`` printed."""
    done = peagle("local", "up", "tiny", "--name", NAME, "--json")
    try:
        assert done.returncode == 0, done.stderr
        yield json.loads(done.stdout)
    finally:
        peagle("local", "down", "--all")


def processes_of(process: EngineProcess) -> tuple[int, ...]:
    return session_members(process.pid, since=process.started)


def test_up_proves_that_the_head_drafts_in_parallel(running: dict[str, Any]) -> None:
    assert running["acceptance_length"] >= 2.2
    assert running["second_turn"]["cached_share"] > 0.2
    assert running["findings"] == []
    assert running["drafts"] > 20
    log = Path(running["log"]).read_text(encoding="utf-8")
    assert '\\"parallel_drafting\\":true' in log.replace(" ", "")


def greedy_answers(port: int) -> list[str]:
    """The answers to all held-out prompts."""
    bodies = [
        request_body(entry["prompt"], chat=entry["kind"] == "chat", max_tokens=100)
        for entry in HELD_OUT
    ]
    return [parse_piece(local.ask(port, body)).text for body in bodies]


def test_greedy_answers_are_the_same_with_and_without_speculation(
    running: dict[str, Any], peagle: Peagle
) -> None:
    """Speculation changes only how long an answer takes."""
    before = local.counters(running["port"])
    drafted = greedy_answers(running["port"])
    counted = local.counters(running["port"]).since(before)
    up = peagle("local", "up", "tiny", "--name", "alone", "--no-speculation", "--json")
    assert up.returncode == 0, up.stderr
    alone = greedy_answers(json.loads(up.stdout)["port"])
    assert peagle("local", "down", "alone", "--now").returncode == 0
    assert drafted == alone
    assert all(drafted)
    assert counted.drafts > 150
    assert (acceptance_length(counted) or 0) >= 2.2, "on held-out prompts, at K=7"


@contextmanager
def begun(port: int, tokens: int) -> Iterator[http.client.HTTPResponse]:
    """A streamed answer of so many tokens, after its first event."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    asked = {**request_body(QUESTION, chat=True, max_tokens=tokens, stream=True),
             "model": "peagle/tiny", "ignore_eos": True}  # fmt: skip
    headers = {"Content-Type": "application/json"}
    with closing(connection):
        connection.request("POST", "/v1/chat/completions", json.dumps(asked), headers)
        with connection.getresponse() as reply:
            assert reply.readline().startswith(b"data:")
            yield reply


def test_down_lets_a_running_answer_finish_and_leaves_no_process(
    running: dict[str, Any], peagle: Peagle
) -> None:
    engine = records.read_local_engine(NAME)
    assert engine is not None
    assert len(processes_of(engine.process)) > 1
    command = [sys.executable, "-m", "peagle.cli", "local", "down", NAME]
    with (
        begun(running["port"], tokens=900) as reply,
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as typed,
    ):
        assert typed.stderr is not None
        assert "for running requests of" in typed.stderr.readline()
        events = list(EventSplitter().feed(b"\n" + reply.read()))
        assert typed.wait(60) == 0
    assert events[-1] == "[DONE]"
    assert list(pieces(iter(events)))[-1].output_tokens == 900
    assert processes_of(engine.process) == ()
    assert peagle("local", "list", "--json").stdout.strip() == '{\n  "engines": []\n}'


def test_a_speculative_config_that_vllm_refuses_fails_with_vllms_reason() -> None:
    plan = make_plan(Options(pair="tiny", name="wrong"), load_catalog())
    config = json.loads(plan.environment["SM_VLLM_SPECULATIVE_CONFIG"])
    wrong = json.dumps({**config, "no_such_setting": 1})
    environment = {**plan.environment, "SM_VLLM_SPECULATIVE_CONFIG": wrong}
    with raises_code("engine-exited", EngineError) as failed:
        start_local(plan.model_copy(update={"environment": environment}))
    assert "SpeculativeConfig no_such_setting" in failed.value.message
    assert records.local_engines() == ()


def test_down_stops_an_engine_whose_command_line_was_killed(peagle: Peagle) -> None:
    command = [sys.executable, "-m", "peagle.cli", "local", "up", "tiny", "--name", "killed"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as typed:
        log = records.log_of("killed")
        while not (log.is_file() and "EngineCore pid=" in log.read_text(errors="replace")):
            assert typed.poll() is None
            time.sleep(0.1)
        typed.kill()
    engine = records.read_local_engine("killed")
    assert engine is not None
    assert is_alive(engine.process)
    done = peagle("local", "down", "killed", env=dict(os.environ))
    assert done.returncode == 0
    assert processes_of(engine.process) == ()
    assert not records.locate_folder("killed").exists()
