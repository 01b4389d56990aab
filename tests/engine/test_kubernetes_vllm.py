"""The manifests for Kubernetes with real vLLM: each platform's own command line drafts, and the
gate's proof passes."""

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from peagle.engine.machine import Engine
from peagle.engine.process import free_port, session_members, start_time
from peagle.planning import Plan
from peagle.render import plan_bytes
from peagle_serve.command import PLUGINS_FOLDER
from tests.engine.serving import CPU, SERVE, START_SECONDS, TINY, Container, script_environment
from tests.support import Done, in_process
from tests.unit.rendering.kubernetes import environment_of, expanded, manifests, preset
from tests.unit.rendering.plans import plan_of

pytestmark = pytest.mark.engine
ON_CPU = ("--enforce-eager", "--distributed-executor-backend", "uni")


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_of("uploaded")


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that both platforms mount, with target and head as the project lays them out."""
    folder = tmp_path_factory.mktemp("mounted")
    (folder / "target").symlink_to(TINY / "target")
    (folder / "drafter").symlink_to(TINY / "p-eagle")
    return folder


@pytest.fixture(scope="module")
def kserve(
    engine: Engine, plan: Plan, mounted: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[int]:
    """The port of what KServe's script starts; ``vllm`` is the CPU build's server."""
    folder, port = tmp_path_factory.mktemp("kserve"), free_port()
    program = folder / "vllm"
    server = f"exec {shlex.quote(str(engine.python))} -m vllm.entrypoints.openai.api_server"
    program.write_text(f'#!/bin/bash\n[ "$1" = serve ] && {server} --model "${{@:2}}"\n')
    program.chmod(0o755)
    (document,) = manifests("kserve", plan)
    script, environment = preset(document)
    places = {
        "/mnt/models": str(mounted / "target"),
        "/mnt/drafter": str(mounted / "drafter"),
        "--port 8000": f"--host 127.0.0.1 --port {port}",
    }
    for old, new in places.items():
        script = script.replace(old, new)
        environment = {name: text.replace(old, new) for name, text in environment.items()}
    path = f"{folder}:{os.environ['PATH']}"
    plugins = f"{CPU['PYTHONPATH']}:{SERVE.parent}:{PLUGINS_FOLDER}"  # ours, as in the container
    variables = {**environment, **script_environment(), **CPU, "PATH": path, "PYTHONPATH": plugins}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["/bin/bash", "-c", script, "--", *ON_CPU],
            env=variables,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    since = start_time(process.pid) or 0
    try:
        yield port
    finally:
        for pid in session_members(process.pid, since=since):
            os.kill(pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def hyperpod(
    engine: Engine, plan: Plan, mounted: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[int]:
    """The port of the container with the environment of HyperPod's manifest."""
    (document,) = manifests("hyperpod", plan)
    environment = environment_of(document["spec"]["worker"], "environmentVariables")
    here = {name: text.replace("/opt/ml/model", str(mounted)) for name, text in environment.items()}
    variables = {**CPU, **here, "SM_VLLM_HOST": "127.0.0.1"}
    container = Container(engine, tmp_path_factory.mktemp("hyperpod"), **variables)
    try:
        yield container.port
    finally:
        container.end()


def gate(plan: Plan, format: str, port: int, folder: Path) -> Done:
    """The proof of the Job in the manifest, with this port in its URL."""
    _, job = manifests(format, plan, "gate.yaml")
    (prove,) = job["spec"]["template"]["spec"]["containers"]
    words = [expanded(word, {}) for word in prove["args"]]
    file = folder / "plan.json"
    file.write_bytes(plan_bytes(plan))
    words[words.index("--url") + 1] = f"http://127.0.0.1:{port}/v1"
    words[words.index("--plan") + 1] = str(file)
    words[words.index("--wait") + 1] = f"{START_SECONDS}s"
    return in_process(*words)


def test_both_platforms_command_lines_draft_and_pass_the_gate(
    plan: Plan, hyperpod: int, kserve: int, tmp_path: Path
) -> None:
    """Both engines start at the same time."""
    for name, port in (("hyperpod", hyperpod), ("kserve", kserve)):
        done = gate(plan, name, port, tmp_path)
        assert done.code == 0, done.err
        proof = done.document
        assert proof["floor_source"] == "catalogue"
        assert proof["acceptance_length"] >= proof["floor"] > 2
