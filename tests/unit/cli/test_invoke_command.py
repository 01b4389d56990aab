"""``peagle invoke``: answers, their cost and bad prompts; endpoints of the sandbox."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.aws.cloud import service_error
from tests.unit.cli.commands import FIRST, NAME, Terminal

OUR_IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/peagle:1"


@pytest.fixture
def deployed(terminal: Terminal) -> Terminal:
    """An endpoint whose image exposes counters."""
    terminal.cloud.digests["1"] = f"sha256:{'a' * 64}"
    assert terminal.run(*FIRST, "--image", OUR_IMAGE, "--yes").code == 0
    terminal.cloud.engine.prompts.clear()
    return terminal


def _asked(terminal: Terminal) -> dict[str, Any]:
    (body,) = terminal.cloud.engine.prompts
    return body


def test_while_an_endpoint_is_created_invoke_and_status_say_what_to_do(terminal: Terminal) -> None:
    terminal.cloud.next_scripts = [[("Creating", None)] * 100]
    assert terminal.run(*FIRST, "--no-wait", "--yes").code == 0

    def before(operation: str) -> None:
        if operation.startswith("invoke"):
            raise service_error("ValidationError", "its state is Creating", operation)

    terminal.cloud.before = before
    shown = terminal.run("status", NAME).out
    asked = terminal.run("invoke", NAME, "hello")
    assert f"{NAME}: Creating" in shown
    assert "to continue" in shown
    assert "peagle deploy " in shown
    assert asked.code == 4
    assert asked.error.endswith(f"peagle status {NAME})")


@pytest.mark.parametrize("stream", [True, False])
def test_json_has_the_agreed_keys(deployed: Terminal, stream: bool) -> None:
    option = "--stream" if stream else "--no-stream"
    document = deployed.run("invoke", NAME, "Say hello", option, "--json").document
    assert document["text"] == "Hello world"
    assert document["output_tokens"] == 2
    assert document["seconds"] >= 0
    assert (document["first_token_seconds"] is not None) == stream
    assert document["acceptance_length"] == pytest.approx(3.0)
    assert _asked(deployed).get("stream", False) is stream


def test_the_image_of_aws_is_not_asked_for_counters(terminal: Terminal) -> None:
    """It would answer with an error, which counts in the endpoint's metrics."""
    assert terminal.run(*FIRST, "--yes").code == 0
    calls = terminal.cloud.calls.count("invoke_endpoint")
    document = terminal.run("invoke", NAME, "Say hello", "--no-stream", "--json").document
    assert document["acceptance_length"] is None
    assert terminal.cloud.calls.count("invoke_endpoint") == calls + 1


def test_an_engine_restarted_meanwhile_has_no_acceptance_length(
    deployed: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = deployed.cloud.engine.answer

    def restart_and_answer(body: dict[str, Any]) -> dict[str, Any]:
        deployed.cloud.engine.drafts = -10
        return answer(body)

    monkeypatch.setattr(deployed.cloud.engine, "answer", restart_and_answer)
    assert deployed.run("invoke", NAME, "Hi", "--json").document["acceptance_length"] is None


def test_options_reach_the_engine(deployed: Terminal) -> None:
    deployed.run(
        "invoke", NAME, "x = ", "--completion", "--max-tokens", "7", "--temperature", "0.5"
    )
    body = _asked(deployed)
    assert body["prompt"] == "x = "
    assert body["max_tokens"] == 7
    assert body["temperature"] == 0.5


@pytest.mark.parametrize("prompt", ['\'; DROP "x" $(rm) `ls` \\n', "日本語 🦅", "line\nline\n"])
def test_a_prompt_arrives_as_it_was_typed_or_piped(deployed: Terminal, prompt: str) -> None:
    deployed.run("invoke", NAME, prompt)
    deployed.run("invoke", NAME, "-", stdin=prompt.encode())
    typed, piped = deployed.cloud.engine.prompts
    assert typed["messages"][0]["content"] == prompt
    assert piped["messages"][0]["content"] == prompt


@pytest.mark.thorough
def test_a_prompt_beyond_the_context_is_refused_in_the_engines_words(deployed: Terminal) -> None:
    def refuse(operation: str) -> None:
        if operation == "invoke_endpoint_with_response_stream":
            raise service_error(
                "ModelError", "Received client error (400)", operation, OriginalStatusCode=400,
                OriginalMessage='{"error":{"message":"maximum context length is\\n2048 tokens"}}',
            )  # fmt: skip

    deployed.cloud.before = refuse
    done = deployed.run("invoke", NAME, "much too long")
    assert done.code == 2
    assert "maximum context length is 2048 tokens" in done.error
    assert len(done.err.splitlines()) == 1


def test_a_json_object_is_the_body_of_the_request(deployed: Terminal) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
    assert deployed.run("invoke", NAME, json.dumps(body)).code == 0
    assert deployed.run("invoke", NAME, "{name} says hello").code == 0
    sent, text = deployed.cloud.engine.prompts
    assert sent == body
    assert text["messages"][0]["content"] == "{name} says hello"


def test_another_machine_asks_an_endpoint_of_copies_once(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A request without the component's name is rejected and counts as an error."""
    copies = ("deploy", "tiny", "--instance-type", "ml.g5.12xlarge", "--copies", "4", "--yes")
    assert terminal.run(*copies).code == 0
    monkeypatch.setenv("PEAGLE_HOME", str(tmp_path / "another"))
    terminal.cloud.calls.clear()
    assert terminal.run("invoke", NAME, "Hi").code == 0
    asked = [call for call in terminal.cloud.calls if call.startswith("invoke")]
    assert asked == ["invoke_endpoint_with_response_stream"]


def test_a_prompt_that_is_damaged_json_is_not_sent(deployed: Terminal) -> None:
    before = len(deployed.cloud.calls)
    done = deployed.run("invoke", NAME, '{"prompt": "Hi",}')
    assert (done.code, "(line 1, column 17)" in done.error) == (2, True)
    assert not [call for call in deployed.cloud.calls[before:] if call.startswith("invoke")]
