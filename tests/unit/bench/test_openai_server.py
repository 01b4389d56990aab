"""A server that refuses, fails, dies or answers something else: one error each."""

from __future__ import annotations

import pytest

from peagle.bench.server import OpenAiServer, PromptRefused, ask_together
from peagle.errors import EngineError, PeagleError, UserError
from tests.support import raises_code
from tests.unit.answers import INVALID
from tests.unit.bench.drafting import Drafting, prompts_of
from tests.unit.local.test_hostile_engine import OK, answering

BODY = {"prompt": "Hi", "max_tokens": 1}


def ask(port: int) -> dict[str, object]:
    return OpenAiServer(f"http://127.0.0.1:{port}/v1", "m", log=("peagle", "logs", "x")).ask(BODY)


def error(status: int, message: str = "it says no") -> bytes:
    return f'HTTP/1.1 {status} -\r\n\r\n{{"error": {{"message": "{message}"}}}}'.encode()


def test_an_answer_is_returned() -> None:
    with answering(OK + b'\r\n{"choices": []}') as port:
        assert ask(port) == {"choices": []}


@pytest.mark.parametrize(
    ("status", "code", "kind", "exit_code"),
    [
        (400, "prompt-refused", PromptRefused, 2),
        (413, "prompt-refused", PromptRefused, 2),
        (401, "unauthorized", UserError, 2),
        (404, "no-such-route", UserError, 2),
        (429, "engine-failed", EngineError, 4),
        (500, "engine-failed", EngineError, 4),
    ],
)
def test_every_status_has_its_error(
    status: int, code: str, kind: type[PeagleError], exit_code: int
) -> None:
    with answering(error(status)) as port, raises_code(code, kind) as raised:
        ask(port)

    assert "it says no" in raised.value.message
    assert raised.value.fix
    assert raised.value.exit_code == exit_code


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1"])
def test_an_answer_that_is_cut_off_is_an_error(answer: bytes) -> None:
    with answering(answer) as port, raises_code("no-answer", EngineError) as raised:
        ask(port)

    assert raised.value.command == ("peagle", "logs", "x")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/v1", "http://a:99999/v1"])
def test_a_server_that_is_gone_is_an_error(url: str) -> None:
    with raises_code("no-answer", EngineError):
        OpenAiServer(url, "m").ask(BODY)


@pytest.mark.parametrize("name", ["no JSON", "no UTF-8", "cut short", "NaN", "a list", "nothing"])
def test_an_answer_that_is_no_json_object_is_an_error(name: str) -> None:
    with (
        answering(OK + b"\r\n" + INVALID[name]) as port,
        raises_code("invalid-response", EngineError),
    ):
        ask(port)


def test_a_key_is_not_shown() -> None:
    assert "secret" not in repr(OpenAiServer("http://a/v1", "m", "secret"))


def test_requests_together_keep_their_order_and_refusals() -> None:
    asked = [
        (one, one.body(chat=False, max_tokens=1)) for one in prompts_of("a", "too long").prompts
    ]

    answers, refused = ask_together(Drafting().ask, asked * 8, 3)

    assert len(answers) == 8
    assert {one.line for one in refused} == {2}
