"""`peagle deploy` and everything after it, in the sandbox, with real vLLM and our own tiny pair."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from peagle.data import data_folder
from peagle.engine.installed import find_engine
from peagle.errors import EngineMissing
from peagle.protocol import EventSplitter, pieces
from tests.support import Peagle

pytestmark = [pytest.mark.engine, pytest.mark.sandbox]

NAME = "peagle-tiny"
QUESTION = "What does os.path.join do?"
WHERE = ("--sandbox",)


@pytest.fixture(scope="module", autouse=True)
def own_place(tmp_path_factory: pytest.TempPathFactory, peagle: Peagle) -> Iterator[None]:
    """A home for this module, with an engine; nothing runs in it afterwards."""
    try:
        find_engine("0.28.0")
    except EngineMissing as missing:
        pytest.skip(str(missing))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PEAGLE_HOME", str(tmp_path_factory.mktemp("deploy")))
        yield
        assert peagle("sandbox", "stop").returncode == 0


@pytest.fixture(scope="module")
def told(peagle: Peagle) -> Any:
    """The JSON of a command that succeeds."""

    def run(*arguments: str) -> Any:
        done = peagle(*arguments, *WHERE, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="module")
def printed(peagle: Peagle) -> str:
    """What a first deploy prints."""
    done = peagle("deploy", "tiny", *WHERE, "--yes")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def broken_head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our head with an activation that vLLM has not for such heads; no rule looks at that."""
    folder = tmp_path_factory.mktemp("head") / "p-eagle"
    shutil.copytree(data_folder("model_catalog") / "peagle" / "tiny" / "p-eagle", folder)
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"hidden_act": "gelu"}))
    return folder


def _engine(peagle: Peagle) -> int:
    """The process behind the endpoint."""
    (endpoint,) = json.loads(peagle("sandbox", "status", "--json").stdout)["endpoints"]
    pid: int = endpoint["pid"]
    return pid


def test_a_deploy_proves_that_real_vllm_accepts_drafts(printed: str, told: Any) -> None:
    document = told("status", NAME)

    assert document["state"] == "InService"
    assert document["acceptance_length"] >= document["acceptance_floor"] > 1
    assert document["drafts"] > 20
    assert len(document["acceptance_per_position"]) == document["k"] == 5
    assert document["stand_in"] is None


def test_the_same_deploy_again_leaves_the_engine_alone(
    printed: str, told: Any, peagle: Peagle
) -> None:
    before = _engine(peagle)

    document = told("deploy", "tiny", "--yes")

    assert document["changed"] is False
    assert _engine(peagle) == before


def test_an_answer_is_streamed_with_its_own_acceptance_length(printed: str, told: Any) -> None:
    document = told("invoke", NAME, QUESTION, "--max-tokens", "48")

    assert "join" in document["text"]
    assert document["output_tokens"] == 48
    assert 0 < document["first_token_seconds"] < document["seconds"]
    assert document["acceptance_length"] > 1.5


def test_streamed_whole_and_sampled_answers_are_the_same_engine(printed: str, told: Any) -> None:
    streamed = told("invoke", NAME, QUESTION, "--max-tokens", "32")
    whole = told("invoke", NAME, QUESTION, "--max-tokens", "32", "--no-stream")

    assert whole["text"] == streamed["text"]
    assert whole["first_token_seconds"] is None
    assert told("invoke", NAME, "import os", "--completion", "--max-tokens", "8")["output_tokens"]


def test_a_prompt_beyond_the_context_is_refused_in_vllms_words(
    printed: str, peagle: Peagle
) -> None:
    done = peagle("invoke", NAME, "-", *WHERE, input="word " * 5000)

    assert done.returncode == 2
    assert "maximum context length is 2048 tokens" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_address_and_the_token_work_for_openai_clients(
    printed: str, told: Any, peagle: Peagle
) -> None:
    url = told("status", NAME)["openai_base_url"]
    token = peagle("token", NAME, *WHERE).stdout.strip()
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


def test_the_printed_boto3_lines_work_as_they_are(printed: str, peagle: Peagle) -> None:
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


def test_the_log_is_vllms_own(printed: str, peagle: Peagle) -> None:
    assert '"method": "eagle3"' in peagle("logs", NAME, *WHERE).stdout.replace("'", '"')


def test_a_broken_head_fails_with_its_reason_and_goes_completely(
    peagle: Peagle, told: Any, broken_head: Path
) -> None:
    done = peagle(
        "deploy", "tiny", "--drafter", str(broken_head), "--name", "broken", *WHERE, "--yes"
    )

    assert done.returncode == 4
    assert "Unsupported activation: gelu" in done.stderr.splitlines()[-1]
    assert "Remove   peagle destroy broken --sandbox" in done.stderr
    assert told("status", "broken")["state"] == "Failed"
    removed = {entry["type"] for entry in told("destroy", "broken", "--yes")["removed"]}
    assert {"Endpoint", "EndpointConfig", "Model", "S3Objects"} <= removed


def test_an_update_that_fails_is_rolled_back_and_said(
    printed: str, peagle: Peagle, told: Any, broken_head: Path
) -> None:
    before = told("status", NAME)

    done = peagle("deploy", "tiny", "--drafter", str(broken_head), "--name", NAME, *WHERE, "--yes")

    assert done.returncode == 4
    assert "the update was rolled back" in done.stderr
    after = told("status", NAME)
    assert after["state"] == "InService"
    assert after["endpoint_config"] == before["endpoint_config"]
    assert told("invoke", NAME, QUESTION, "--max-tokens", "8")["output_tokens"] == 8


def test_another_k_is_an_update_that_is_proved_anew(printed: str, told: Any) -> None:
    document = told("deploy", "tiny", "--k", "3", "--yes")

    assert document["state"] == "InService"
    assert document["k"] == len(document["acceptance_per_position"]) == 3
    assert document["acceptance_length"] > 1.5
    kinds = [resource["type"] for resource in document["resources"]]
    assert kinds.count("Model") == kinds.count("EndpointConfig") == 1


def test_destroy_leaves_no_process_and_no_record(printed: str, told: Any, peagle: Peagle) -> None:
    told("destroy", NAME, "--yes")

    assert json.loads(peagle("sandbox", "status", "--json").stdout)["endpoints"] == []
    assert told("list") == {"deployments": []}
