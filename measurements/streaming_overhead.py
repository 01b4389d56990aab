"""The time that the sandbox adds to the first token, compared with the engine itself.

Goal: at most 20 ms for both streaming paths. Each round measures all three paths, one after the
other, so that changes in the machine's load affect them equally; the same client code measures them
from the connection to the first byte of the response's body.
"""

from __future__ import annotations

import http.client
import json
import statistics
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from measurements.commands import run_peagle, temporary_home

if TYPE_CHECKING:
    from peagle.sandbox.state import AccessKey

NAME = "streaming-overhead"
ROUNDS = 40
GOAL_MS = 20.0
BODY = json.dumps(
    {
        "messages": [{"role": "user", "content": "What does textwrap.wrap do?"}],
        "max_tokens": 8,
        "temperature": 0,
        "stream": True,
    }
)


def main() -> None:
    """Deploy with its own PEAGLE_HOME, measure, clean up, and print the milliseconds."""
    with temporary_home():
        try:
            run_peagle("deploy", "tiny", "--name", NAME, "--sandbox", "--yes")
            _show(_measure(_paths()))
        finally:
            run_peagle("sandbox", "stop")


def _paths() -> dict[str, Callable[[], float]]:
    """Three paths to the same engine; each function gives the milliseconds to the first byte."""
    from peagle.aws.client import Keys, connect
    from peagle.sandbox.client import sandbox_status
    from peagle.sandbox.state import read_daemon

    daemon = read_daemon()
    assert daemon is not None
    (engine,) = sandbox_status().endpoints
    aws = connect("us-east-1", endpoint_url=daemon.url, keys=Keys(daemon.key.id, daemon.key.secret))
    sandbox = urlsplit(daemon.url).netloc
    signed = _signed(f"{daemon.url}/endpoints/{NAME}/invocations-response-stream", daemon.key)
    bearer = {"Authorization": f"Bearer {aws.bearer_token()}"}
    base = f"/endpoints/{NAME}"
    return {
        "the engine itself": lambda: _first_byte(f"127.0.0.1:{engine.port}", "/invocations", {}),
        "invocations-response-stream": lambda: _first_byte(
            sandbox, f"{base}/invocations-response-stream", signed
        ),
        "the OpenAI-compatible path": lambda: _first_byte(
            sandbox, f"{base}/openai/v1/chat/completions", bearer
        ),
    }


def _signed(url: str, key: AccessKey) -> dict[str, str]:
    """The headers of a request to ``url``, signed once for all rounds."""
    request = AWSRequest("POST", url, {"Content-Type": "application/json"}, BODY)
    SigV4Auth(Credentials(key.id, key.secret), "sagemaker", "us-east-1").add_auth(request)
    return dict(request.headers.items())


def _first_byte(host: str, path: str, headers: Mapping[str, str]) -> float:
    begin = time.perf_counter()
    connection = http.client.HTTPConnection(host)
    connection.request("POST", path, BODY, {"Content-Type": "application/json", **headers})
    response = connection.getresponse()
    assert response.status == http.HTTPStatus.OK, response.read()
    response.read1(1)
    taken = time.perf_counter() - begin
    response.read()
    connection.close()
    return taken * 1000


def _measure(paths: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    for request in paths.values():
        request()
    taken: dict[str, list[float]] = {name: [] for name in paths}
    for _ in range(ROUNDS):
        for name, request in paths.items():
            taken[name].append(request())
    return taken


def _show(taken: Mapping[str, list[float]]) -> None:
    direct, *others = taken.items()
    print(f"{direct[0]:28} {statistics.median(direct[1]):6.1f} ms to the first byte (median)")
    for name, values in others:
        added = [through - alone for through, alone in zip(values, direct[1], strict=True)]
        middle, worst = statistics.median(added), max(added)
        share = middle / GOAL_MS
        print(f"{name:28} {middle:+6.1f} ms (worst {worst:+.1f})   goal 20 ms   {share:.2f}")


if __name__ == "__main__":
    main()
