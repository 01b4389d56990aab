"""Warm starts in containers: what is refused before one starts, and how a container is ended."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from peagle.images import Docker
from peagle.protocol import EventSplitter, pieces, request_body
from tests.support import Peagle

pytestmark = pytest.mark.docker

NAME = "docker-warm"


def test_an_image_without_a_compiler_is_refused_before_a_container_starts(
    image: dict[str, Any], peagle: Peagle
) -> None:
    done = peagle("warm", "tiny", "--local", "--engine", "docker")

    assert done.returncode == 2
    assert "cannot be compiled: the image" in done.stderr
    assert "--base" in done.stderr
    assert json.loads(peagle("local", "list", "--json").stdout) == {"engines": []}


def test_the_container_knows_its_image_and_down_lets_an_answer_finish(
    image: dict[str, Any], peagle: Peagle, docker: Docker
) -> None:
    up = peagle("local", "up", "tiny", "--name", NAME, "--engine", "docker", "--json")
    try:
        assert up.returncode == 0, up.stderr
        running = json.loads(up.stdout)
        found = docker.inspect("container", running["container"])
        assert found is not None
        assert any(one.startswith("PEAGLE_IMAGE_DIGEST=sha256:") for one in found["Config"]["Env"])

        assert ended_while_answering(running["port"], tokens=1200) == 1200
        assert docker.inspect("container", running["container"]) is None
    finally:
        peagle("local", "down", "--all", "--now")


def ended_while_answering(port: int, tokens: int) -> int | None:
    """How many tokens came of an answer during which `peagle local down` was typed."""
    asked = {**request_body("What is os?", chat=True, max_tokens=tokens, stream=True),
             "model": "peagle/tiny", "ignore_eos": True}  # fmt: skip
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(asked), headers)
        with connection.getresponse() as reply:
            assert reply.readline().startswith(b"data:")
            command = [sys.executable, "-m", "peagle.cli", "local", "down", NAME]
            with subprocess.Popen(command, cwd=Path.cwd(), env=dict(os.environ)) as typed:
                events = list(EventSplitter().feed(b"\n" + reply.read()))
                assert typed.wait(60) == 0
    assert events[-1] == "[DONE]"
    return list(pieces(iter(events)))[-1].output_tokens
