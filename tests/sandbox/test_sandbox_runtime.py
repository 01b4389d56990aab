"""Invocations: what reaches the engine, and what is returned when."""

import contextlib
import http.client
import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import ClientError, EventStreamError

from tests.sandbox.sandboxes import Account

pytestmark = pytest.mark.sandbox
GAP = 1.0
"""Seconds between chunks: a busy machine sends the first one within them."""


@pytest.fixture(scope="module")
def name(account: Account) -> Iterator[str]:
    """An endpoint in service, for all tests of this file."""
    name = account.endpoint({"SM_VLLM_MAX_MODEL_LEN": "512"})
    assert account.wait_until_stable(name)["EndpointStatus"] == "InService"
    yield name
    account.delete(name)


@pytest.fixture(scope="module")
def address(account: Account) -> str:
    """Host and port of the sandbox."""
    netloc: str = urlsplit(account.url).netloc
    return netloc


@pytest.fixture(scope="module")
def token(account: Account) -> str:
    """A bearer token as the toolkit makes it."""
    return account.connect().bearer_token()


def error_of(raised: pytest.ExceptionInfo[ClientError]) -> tuple[int, str, str]:
    response = raised.value.response
    status = response["ResponseMetadata"]["HTTPStatusCode"]
    return status, response["Error"]["Code"], response["Error"]["Message"]


def stream(account: Account, name: str, document: dict[str, Any]) -> Iterator[bytes]:
    answer = account.runtime.invoke_endpoint_with_response_stream(
        EndpointName=name, Body=json.dumps(document), ContentType="application/json"
    )
    with contextlib.closing(answer["Body"]) as events:
        for event in events:
            yield event["PayloadPart"]["Bytes"]


def chat(
    address: str, name: str, document: dict[str, Any], **headers: str
) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(address, timeout=30)
    connection.request(
        "POST",
        f"/endpoints/{name}/openai/v1/chat/completions",
        json.dumps(document),
        {"Content-Type": "application/json", **headers},
    )
    return connection.getresponse()


def test_body_and_headers_arrive_as_they_were_sent(account: Account, name: str) -> None:
    document = {"text": 'ü "quoted" %20 \n'}
    answer = account.invoke(
        name, document, CustomAttributes="trace=7", Accept="text/plain", SessionId="s-1"
    )
    assert json.loads(answer["body"]) == document
    assert answer["path"] == "/invocations"
    headers = answer["headers"]
    assert headers["x-amzn-sagemaker-custom-attributes"] == "trace=7"
    assert headers["x-amzn-sagemaker-session-id"] == "s-1"
    assert headers["accept"] == "text/plain"
    assert headers["content-type"] == "application/json"
    assert "authorization" not in headers


def test_aws_s_image_knows_none_of_our_attributes(account: Account, name: str) -> None:
    headers = account.invoke(name, {}, CustomAttributes="peagle=counters")["headers"]
    assert "x-amzn-sagemaker-custom-attributes" not in headers


@pytest.mark.parametrize(("status", "kind"), [(400, "client"), (500, "server")])
@pytest.mark.parametrize("call", ["invoke_endpoint", "invoke_endpoint_with_response_stream"])
def test_an_error_of_the_engine_is_a_model_error(
    account: Account, name: str, call: str, status: int, kind: str
) -> None:
    document = {"do": "status", "status": status, "text": '{"error": "too long"}'}
    with pytest.raises(account.runtime.exceptions.ModelError) as raised:
        getattr(account.runtime, call)(EndpointName=name, Body=json.dumps(document))
    http_status, code, words = error_of(raised)
    assert (http_status, code) == (424, "ModelError")
    assert words.startswith(
        f'Received {kind} error ({status}) from primary with message "{{"error": "too long"}}"'
    )
    assert raised.value.response["OriginalStatusCode"] == status
    assert raised.value.response["OriginalMessage"] == '{"error": "too long"}'


def test_a_body_over_the_limit_is_refused(account: Account, name: str) -> None:
    largest = json.dumps({"filling": ""})
    fits = largest.replace('""', f'"{"x" * (6 * 1024 * 1024 - len(largest))}"')
    answer = account.runtime.invoke_endpoint(EndpointName=name, Body=fits)
    assert len(json.loads(answer["Body"].read())["body"]) == 6 * 1024 * 1024
    with pytest.raises(ClientError) as raised:
        account.runtime.invoke_endpoint(EndpointName=name, Body=fits + " ")
    assert error_of(raised) == (413, "413", "HTTP content length exceeded 6291456 bytes.")


def test_chunks_of_a_stream_arrive_as_the_engine_sends_them(account: Account, name: str) -> None:
    chunks = ["one", "two", "three " * 50_000, "four"]
    begin = time.monotonic()
    arrived = [
        (part, time.monotonic() - begin)
        for part in stream(account, name, {"do": "stream", "chunks": chunks, "gap": GAP})
    ]
    assert b"".join(part for part, _ in arrived) == "".join(chunks).encode()
    first_seen = dict(reversed(arrived))
    assert first_seen[b"one"] < GAP
    assert first_seen[b"two"] - first_seen[b"one"] > GAP / 2
    assert first_seen[b"four"] > 2.5 * GAP


def test_a_broken_stream_ends_with_a_model_stream_error(account: Account, name: str) -> None:
    parts = stream(account, name, {"do": "break"})
    assert next(parts) == b"half"
    with pytest.raises(EventStreamError) as raised:
        next(parts)
    assert raised.value.response["Error"]["Code"] == "ModelStreamError"
    assert raised.value.response["Error"]["Message"].startswith("The model's stream broke")


@pytest.mark.parametrize(("method", "path"), [
    ("GET", "/v1/models"), ("POST", "/v1/completions"), ("GET", "/v1/chat/completions"),
])  # fmt: skip
def test_other_paths_of_openai_are_not_served(
    address: str, name: str, token: str, method: str, path: str
) -> None:
    connection = http.client.HTTPConnection(address, timeout=30)
    headers = {"Authorization": f"Bearer {token}"}
    connection.request(method, f"/endpoints/{name}/openai{path}", headers=headers)
    answer = connection.getresponse()
    message = json.load(answer)["error"]["message"]
    assert (answer.status, f"does not serve {method} {path}" in message) == (404, True)
    assert "chat/completions" in message


def test_openai_clients_get_the_stream_as_it_arrives(address: str, name: str, token: str) -> None:
    document = {"do": "stream", "chunks": ["data: 1\n\n", "data: [DONE]\n\n"], "gap": GAP}
    begin = time.monotonic()
    answer = chat(address, name, document, Authorization=f"Bearer {token}")
    assert answer.headers["Content-Type"] == "text/event-stream"
    assert answer.read1() == b"data: 1\n\n"
    assert time.monotonic() - begin < GAP
    assert answer.read() == b"data: [DONE]\n\n"


def test_openai_clients_notice_a_broken_stream(address: str, name: str, token: str) -> None:
    answer = chat(address, name, {"do": "break"}, Authorization=f"Bearer {token}")
    with pytest.raises(http.client.IncompleteRead) as raised:
        answer.read()
    assert raised.value.partial == b"half"


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "https://example.org"}, {"Host": "rebound.example.org"}],
    ids=["another origin", "a name that leads here"],
)
def test_requests_of_web_pages_are_refused(address: str, headers: dict[str, str]) -> None:
    connection = http.client.HTTPConnection(address)
    connection.request("GET", "/_peagle/status", headers=headers)
    answer = connection.getresponse()
    assert (answer.status, json.load(answer)) == (
        403,
        {"message": "the sandbox does not accept requests from web pages"},
    )
    connection.close()
