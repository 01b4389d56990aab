"""`peagle local up --engine docker` with real vLLM: streams, drafts, drains, ends."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peagle.catalog import load_catalog
from peagle.engine import local
from peagle.engine.machine import engine_packages
from peagle.engine.process import free_port, is_healthy
from peagle.engine.runner import Container, LocalOptions, run_arguments
from peagle.images.docker import Docker, show_image
from peagle.planning import Options, make_plan
from peagle.protocol import EventSplitter, pieces, request_body
from peagle.render.image import BAKED_ROOT
from tests.conftest import DEFAULT_VLLM
from tests.docker.conftest import BASE, Build
from tests.support import Peagle

pytestmark = pytest.mark.docker
NAME = "docker-test"
QUESTION = "What does textwrap.wrap do?"
START_SECONDS = 240
FAKE_ENGINE = Path(__file__).parents[1] / "sandbox" / "fake_engine.py"


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


@pytest.fixture(scope="module")
def fake_vllm(docker: Docker, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A mount in the place of vLLM: an engine that starts at once and answers."""
    package = tmp_path_factory.mktemp("fake") / "vllm"
    server = package / "entrypoints" / "openai" / "api_server.py"
    server.parent.mkdir(parents=True)
    shutil.copy(FAKE_ENGINE, server)
    for path in (package, *package.rglob("*")):
        path.chmod(0o755)  # the container has another user
    package.parent.chmod(0o755)
    python = engine_packages(DEFAULT_VLLM).python
    return {f"/opt/peagle-engine/lib/python{python}/site-packages/vllm": package}


@contextmanager
def container(
    docker: Docker, image: str, engine: dict[str, Path], **more: str
) -> Iterator[tuple[Any, Container, Path]]:
    """The tiny pair in a container whose end can be waited for, with that engine, and its log."""
    plan = make_plan(Options(pair="tiny", name="alone"), load_catalog())
    host = LocalOptions(show_image(docker, image))
    environment, _ = host.local_environment(plan)
    chosen = host.container(plan, {**environment, **more}, free_port())
    assert chosen.mounts == {}, "an image with weights needs none"
    chosen = replace(chosen, mounts=engine)
    log = Path(os.environ["PEAGLE_HOME"], "alone.log")
    with log.open("w") as stream:
        program = subprocess.Popen(
            docker.argv(*run_arguments(chosen)), stdout=stream, stderr=stream,
            env={**docker.variables(), **chosen.environment},
        )  # fmt: skip
    try:
        until = time.monotonic() + START_SECONDS
        while not is_healthy(chosen.port):
            assert program.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.2)
        yield program, chosen, log
    finally:
        subprocess.run(docker.argv("rm", "--force", chosen.name), capture_output=True, check=False)
        program.wait(30)


def test_an_image_with_baked_weights_needs_no_mount_and_ends_with_its_engine(
    docker: Docker, build: Build, fake_vllm: dict[str, Path]
) -> None:
    """Without restarts, which the entrypoint else tries after a crash of a healthy engine. What
    vLLM does with baked weights is shown in test_sandbox_docker.py."""
    kill = (
        "import contextlib, os, pathlib, signal\n"
        "for entry in pathlib.Path('/proc').glob('[0-9]*'):\n"
        "    pid = int(entry.name)\n"
        "    with contextlib.suppress(OSError):  # a process that has ended meanwhile\n"
        "        words = (entry / 'cmdline').read_bytes() if pid not in (1, os.getpid()) else b''\n"
        "        if b'api_server' in words: os.kill(pid, signal.SIGKILL)\n"
    )
    built = build("tiny", "--runtime", "cpu", "--base", BASE, "--bake-weights")
    settings = {"PEAGLE_RESTARTS": "0", "SM_VLLM_HOST": "0.0.0.0"}
    with container(docker, built["name"], fake_vllm, **settings) as (program, chosen, log):
        with asked(chosen.port) as reply:
            assert rest_of(reply)[-1] == "[DONE]"
        assert f"{BAKED_ROOT}/model/target" in log.read_text()
        # Detached, because the container can end before `docker exec` returns.
        killed = time.monotonic()
        killing = "exec", "--detach", chosen.name, "python3", "-c", kill
        docker.run(*killing, doing="killing the engine")
        code = program.wait(30)
        assert code not in (0, None)
        assert time.monotonic() - killed < 5
    assert docker.inspect("container", chosen.name) is None


def test_an_image_without_a_compiler_is_refused_before_a_container_starts(
    image: dict[str, Any], peagle: Peagle
) -> None:
    done = peagle("warm", "tiny", "--local", "--engine", "docker")
    assert done.returncode == 2
    assert "cannot be compiled: the image" in done.stderr
    assert "--base" in done.stderr
    assert json.loads(peagle("local", "list", "--json").stdout) == {"engines": []}
