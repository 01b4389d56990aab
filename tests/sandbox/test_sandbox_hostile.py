"""Hostile requests of a program that has the sandbox's key, and engines that end by themselves."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ConnectionClosedError

from tests.sandbox.sandboxes import Account, Sandbox, until

pytestmark = pytest.mark.sandbox


@pytest.mark.parametrize(
    "name", ["PYTHONPATH", "LD_PRELOAD", "PATH", "VLLM_LOGGING_CONFIG_PATH", "SM_VLLM_MIDDLEWARE"]
)
def test_a_variable_that_chooses_code_starts_no_process(
    account: Account, tmp_path: Path, name: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    endpoint = account.endpoint({name: str(tmp_path)})
    found = account.wait_until_stable(endpoint)
    assert found["EndpointStatus"] == "Failed"
    assert f"{name}: this chooses the code" in found["FailureReason"]
    assert not (tmp_path / "ran").exists()
    account.delete(endpoint)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/quota", "{"),
        ("PUT", "/instances", '[{"type": 1}]'),
        ("POST", "/faults", "[" * 100_000),
        ("POST", "/faults",
         '{"operation": "GetRole", "kind": "timeout", "seconds": NaN}'),
        ("PUT", "/quota", '{"instance_type": "ml.g6.xlarge"}'),
    ],
)  # fmt: skip
def test_a_malformed_request_of_the_owner_is_refused(
    sandbox: Sandbox, method: str, path: str, body: str
) -> None:
    status, answer = control(sandbox, method, path, body)
    assert (status, bool(answer["message"])) == (400, True)


def control(sandbox: Sandbox, method: str, path: str, body: str = "") -> tuple[int, Any]:
    """Status and document of a request of the sandbox's own."""
    address = sandbox.address
    connection = http.client.HTTPConnection(urlsplit(address.url).netloc, timeout=30)
    headers = {"Authorization": address.key.authorization}
    connection.request(method, f"/_peagle{path}", body, headers)
    answer = connection.getresponse()
    return answer.status, json.load(answer)


@pytest.mark.parametrize(
    "head", ["X: " + "a" * 200_000, "\r\n".join(f"X-{n}: 1" for n in range(5000))], ids=len
)
def test_a_request_that_cannot_be_parsed_is_one_line_of_the_log(
    sandbox: Sandbox, head: str
) -> None:
    log = sandbox.home / "sandbox" / "daemon.log"
    before = log.read_text()
    _send_raw(sandbox, f"GET /unparsed HTTP/1.1\r\n{head}\r\n\r\n")
    added = until(lambda: log.read_text().removeprefix(before), lambda text: "431" in text, 10)
    # A request of an earlier test may be logged meanwhile.
    (line,) = [one for one in added.splitlines() if "/unparsed" in one]
    assert re.fullmatch(r"GET /unparsed 431 \d+ ms", line[24:])
    assert "Traceback" not in added


def test_the_log_says_when_an_answer_began_or_that_it_was_lost(
    sandbox: Sandbox, account: Account
) -> None:
    sandbox.json("sandbox", "fault", "add", "ListModels", "answer-lost", "--times", "once")
    log = sandbox.home / "sandbox" / "daemon.log"
    before = log.read_text()
    hasty = account.client("sagemaker", config=Config(retries={"total_max_attempts": 1}))
    with pytest.raises(ConnectionClosedError):
        hasty.list_models()
    hasty.list_models()
    added = until(
        lambda: log.read_text().removeprefix(before).splitlines(), lambda lines: len(lines) == 2, 10
    )
    lost = r"SageMaker\.ListModels connection lost after \d+ ms: .*fault answer-lost"
    answered = r"SageMaker\.ListModels 200 \d+ ms"
    assert sorted(bool(re.fullmatch(lost, line[24:])) for line in added) == [False, True]
    assert sorted(bool(re.fullmatch(answered, line[24:])) for line in added) == [False, True]


def _send_raw(sandbox: Sandbox, request: str) -> None:
    """Send a request and read until the sandbox closes the connection."""
    address = urlsplit(sandbox.address.url)
    target = (str(address.hostname), address.port or 0)
    # The sandbox may close the connection before it has read everything.
    with contextlib.suppress(OSError), socket.create_connection(target, timeout=10) as client:
        client.sendall(request.encode())
        while client.recv(4096):
            pass


@pytest.mark.parametrize("body", ["[" * 100_000, '{"a": NaN}', "\ud800", "[]"])
def test_a_malformed_request_of_aws_is_refused(account: Account, body: str) -> None:
    for operation in ("CreateModel", "ListEndpoints", "UnknownOperation"):
        request = AWSRequest(
            "POST", f"{account.url}/", {"X-Amz-Target": f"SageMaker.{operation}"},
            body.encode("utf-8", "surrogatepass"),
        )  # fmt: skip
        keys = Credentials(account.keys.access_key, account.keys.secret_key)
        SigV4Auth(keys, "sagemaker", account.region).add_auth(request)
        connection = http.client.HTTPConnection(urlsplit(account.url).netloc, timeout=30)
        connection.request("POST", "/", request.body, dict(request.headers.items()))
        answer = connection.getresponse()
        assert (answer.status, b"__type" in answer.read()) == (400, True)
