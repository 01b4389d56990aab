"""Best-effort calls share a time budget, and stop after the first timeout."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from peagle.aws import client
from peagle.aws.client import Aws, Keys, connect
from peagle.errors import CloudError

LISTING = ("service-quotas", "list_service_quotas", "Quotas")


class Throttling(BaseHTTPRequestHandler):
    """Throttles the first request and answers all others, without an end to the pages."""

    requests = 0

    def do_POST(self) -> None:
        type(self).requests += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        busy = type(self).requests == 1
        page = {"Quotas": [{"QuotaName": "a"}], "NextToken": str(type(self).requests)}
        body = json.dumps({"__type": "ThrottlingException"} if busy else page).encode()
        self.send_response(400 if busy else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""


@pytest.fixture
def throttling() -> Iterator[str]:
    Throttling.requests = 0
    with ThreadingHTTPServer(("127.0.0.1", 0), Throttling) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def best_effort(url: str) -> Aws:
    return connect("us-east-1", endpoint_url=url, keys=Keys("a", "b")).best_effort()


def test_no_call_takes_longer_than_the_budget() -> None:
    for service in ("pricing", "service-quotas", "sts", "sagemaker"):
        config = best_effort("http://127.0.0.1:9").client(service).meta.config
        assert (config.connect_timeout, config.read_timeout) == (3, 5)
        assert config.retries["total_max_attempts"] == 2


def test_after_one_timeout_no_call_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peagle.aws.client.BEST_EFFORT_TIMEOUTS", (2, 1, 0.2))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        aws = best_effort(f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(CloudError, match="Read timeout"):
            aws.call("sagemaker", "list_endpoints")
        with pytest.raises(CloudError, match="skipped sts: sagemaker in us-east-1 cannot be"):
            aws.account  # noqa: B018


def test_a_refused_connection_is_known_immediately() -> None:
    aws = best_effort("http://127.0.0.1:9")
    with pytest.raises(CloudError, match="Could not connect"):
        aws.call("sagemaker", "list_endpoints")
    with pytest.raises(CloudError, match="skipped sagemaker"):
        aws.call("sagemaker", "list_endpoints")


def test_a_throttled_call_is_repeated(throttling: str) -> None:
    entries = best_effort(throttling).items(*LISTING, ServiceCode="sagemaker")

    assert next(entries) == {"QuotaName": "a"}
    assert Throttling.requests == 2


def test_an_endless_listing_ends_at_the_budget(
    throttling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "BEST_EFFORT_SECONDS", 0.5)

    with pytest.raises(CloudError, match=r"skipped service-quotas: the 0\.5 s budget"):
        list(best_effort(throttling).items(*LISTING, ServiceCode="sagemaker"))


def test_the_original_connection_keeps_its_timeouts() -> None:
    aws = connect("us-east-1", endpoint_url="http://127.0.0.1:9", keys=Keys("a", "b"))
    aws.best_effort().client("sagemaker")

    assert aws.client("sagemaker").meta.config.read_timeout == 60
