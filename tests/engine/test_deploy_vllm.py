"""`peagle deploy`, and the commands that use its endpoint, with real vLLM and the tiny pair."""

import json
import os
import subprocess
import sys
import urllib.request

import pytest

from peagle.protocol import EventSplitter, pieces
from tests.engine.conftest import TINY
from tests.sandbox.sandboxes import Sandbox
from tests.support import Peagle

pytestmark = [pytest.mark.engine, pytest.mark.sandbox]
QUESTION = "What does os.path.join do?"
WHERE = ("--sandbox",)


def test_a_deploy_proves_that_real_vllm_accepts_drafts(printed: str, sandbox: Sandbox) -> None:
    document = sandbox.json("status", TINY, *WHERE)
    assert document["state"] == "InService"
    assert document["acceptance_length"] >= document["acceptance_floor"] > 1
    proof = document["proof"]
    assert (proof["source"], proof["instance_count"]) == ("log", 1), "AWS's image has no counters"
    (instance,) = proof["instances"]
    assert instance["drafts"] == document["drafts"] >= 100
    assert len(document["acceptance_per_position"]) == document["k"] == 7
    assert document["stand_in"] is None


def test_repeating_a_deploy_does_not_restart_the_engine(printed: str, sandbox: Sandbox) -> None:
    before = _engine(sandbox)
    document = sandbox.json("deploy", "tiny", "--yes", *WHERE)
    assert document["changed"] is False
    assert _engine(sandbox) == before


def _engine(sandbox: Sandbox) -> int:
    """The process behind the endpoint."""
    endpoints = sandbox.json("sandbox", "status")["endpoints"]
    (pid,) = [endpoint["pid"] for endpoint in endpoints if endpoint["name"] == TINY]
    return int(pid)


def test_an_answer_is_streamed_and_timed_and_equals_the_whole_one(
    printed: str, sandbox: Sandbox
) -> None:
    ask = ("invoke", TINY, QUESTION, "--max-tokens", "48", *WHERE)
    streamed, whole = sandbox.json(*ask), sandbox.json(*ask, "--no-stream")
    assert "join" in streamed["text"]
    assert streamed["output_tokens"] == 48
    assert 0 < streamed["first_token_seconds"] < streamed["seconds"]
    assert streamed["acceptance_length"] is None, "AWS's image has no counters"
    assert whole["text"] == streamed["text"]
    assert whole["first_token_seconds"] is None
    assert sandbox.json("invoke", TINY, "import os", "--completion", "--max-tokens", "8", *WHERE)[
        "output_tokens"
    ]


def test_a_prompt_beyond_the_context_is_refused_in_vllms_words(
    printed: str, peagle: Peagle
) -> None:
    done = peagle("invoke", TINY, "-", *WHERE, input="word " * 5000)
    assert done.returncode == 2
    assert "maximum context length is 2048 tokens" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_url_and_the_token_work_for_openai_clients(
    printed: str, sandbox: Sandbox, peagle: Peagle
) -> None:
    url = sandbox.json("status", TINY, *WHERE)["openai_base_url"]
    token = peagle("token", TINY, *WHERE).stdout.strip()
    body = {"model": "", "stream": True, "max_tokens": 16,
            "messages": [{"role": "user", "content": QUESTION}]}  # fmt: skip
    request = urllib.request.Request(
        f"{url}/chat/completions",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        events = EventSplitter().feed(reply.read())
    assert "".join(piece.text for piece in pieces(events))


def test_the_printed_boto3_lines_run_unchanged(printed: str, peagle: Peagle) -> None:
    begin = printed.index("import boto3")
    lines = printed[begin : printed.index("\n\n", begin)].splitlines()
    variables = json.loads(peagle("sandbox", "env", "--json").stdout)
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(line.strip() for line in lines)],
        env={**os.environ, **variables},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "'choices'" in done.stdout
