"""`peagle local up --engine docker` with real vLLM: streams, drafts, drains, ends."""

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from peagle.engine import local
from peagle.engine.process import is_healthy
from peagle.images.docker import Docker
from peagle.protocol import EventSplitter, pieces, request_body
from tests.support import Peagle

pytestmark = pytest.mark.docker
NAME = "docker-test"
QUESTION = "What does textwrap.wrap do?"


@pytest.fixture(scope="module")
def running(image: dict[str, Any], peagle: Peagle) -> Iterator[dict[str, Any]]:
    """What ``peagle local up tiny --engine docker --json`` printed."""
    done = peagle("local", "up", "tiny", "--name", NAME, "--engine", "docker", "--json")
    try:
        assert done.returncode == 0, done.stderr
        yield json.loads(done.stdout)
    finally:
        peagle("local", "down", "--all")


@contextmanager
def asked(port: int, **more: Any) -> Iterator[http.client.HTTPResponse]:
    """A streamed answer that has begun."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    body = {"model": "peagle/tiny", **request_body(QUESTION, chat=True, max_tokens=48, stream=True)}
    headers = {"Content-Type": "application/json"}
    with closing(connection):
        connection.request("POST", "/v1/chat/completions", json.dumps({**body, **more}), headers)
        yield connection.getresponse()


def rest_of(reply: http.client.HTTPResponse, begun: bytes = b"") -> list[str]:
    splitter = EventSplitter()
    events = list(splitter.feed(begun))
    while chunk := reply.read1():
        events += splitter.feed(chunk)
    return events


def test_an_answer_is_streamed_and_its_drafts_are_accepted(running: dict[str, Any]) -> None:
    before = local.counters(running["port"])
    with asked(running["port"]) as reply:
        answer = list(pieces(iter(rest_of(reply))))
    counted = local.counters(running["port"]).since(before)
    assert len(answer) > 3, "it comes in pieces"
    assert answer[-1].output_tokens == 48
    assert counted.accepted_tokens > 0
    assert running["acceptance_length"] >= 2.2
    assert running["engine"] == "docker"


def test_only_this_machine_reaches_it_and_it_may_do_little(
    running: dict[str, Any], docker: Docker
) -> None:
    described = docker.inspect("container", running["container"])
    assert described is not None
    settings = described["HostConfig"]
    (published,) = settings["PortBindings"]["8080/tcp"]
    assert published == {"HostIp": "127.0.0.1", "HostPort": str(running["port"])}
    assert settings["ReadonlyRootfs"] is True
    assert settings["CapDrop"] == ["ALL"]
    assert described["Config"]["User"] == "10001:10001"
    assert not any(name.startswith("AWS_") for name in described["Config"]["Env"])


def test_the_container_knows_its_image_and_down_lets_an_answer_finish(
    running: dict[str, Any], peagle: Peagle, docker: Docker
) -> None:
    described = docker.inspect("container", running["container"])
    assert described is not None
    assert any(
        variable.startswith("PEAGLE_IMAGE_DIGEST=sha256:")
        for variable in described["Config"]["Env"]
    )
    command = [sys.executable, "-m", "peagle.cli", "local", "down", NAME]
    with asked(running["port"], max_tokens=1200, ignore_eos=True) as reply:
        first = reply.read1()
        # SIGTERM for the attached `docker run`, as SageMaker sends it; Docker passes it on.
        with subprocess.Popen(command, env=dict(os.environ)) as typed:
            events = rest_of(reply, first)
            assert typed.wait(60) == 0
    assert events[-1] == "[DONE]"
    assert list(pieces(iter(events)))[-1].output_tokens == 1200
    assert docker.inspect("container", running["container"]) is None
    assert not is_healthy(running["port"])


def test_an_image_without_a_compiler_says_what_it_lacks(
    image: dict[str, Any], peagle: Peagle
) -> None:
    done = peagle("warm", "tiny", "--local", "--engine", "docker")
    assert done.returncode == 4
    assert "a C++ compiler" in done.stderr
    assert json.loads(peagle("local", "list", "--json").stdout) == {"engines": []}
