"""The compose files of `peagle local up --emit-compose` and `peagle render compose`, run by Compose
itself."""

import http.client
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from peagle.catalog import load_catalog
from peagle.engine import local
from peagle.engine.process import free_port, is_healthy
from peagle.engine.runner import LocalRunner, run_arguments
from peagle.images.docker import Docker, show_image
from peagle.planning import Options, make_plan
from peagle.protocol import request_body
from peagle.render.formats.compose import CACHE_VOLUME, compose_text
from tests.support import Peagle

pytestmark = pytest.mark.docker
NAME = "composed"
START_SECONDS = 240
SAME = ("CapAdd", "CapDrop", "PidMode", "PortBindings", "Privileged", "ReadonlyRootfs",
        "SecurityOpt", "ShmSize", "Tmpfs", "UsernsMode")  # fmt: skip
"""Of a container's HostConfig: what it may do, and what it sees of this machine."""


@pytest.fixture(scope="module")
def compose() -> list[str]:
    """The plugin where Docker has it, else Debian's program."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]) and _run([*command, "version"]).returncode == 0:
            return command
    pytest.skip("there is no docker compose (Debian: apt-get install docker-compose)")


@pytest.fixture(scope="module")
def file(image: dict[str, Any], peagle: Peagle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``peagle local up tiny --engine docker --emit-compose`` writes."""
    written = tmp_path_factory.mktemp(NAME) / "compose.yaml"
    done = peagle("local", "up", "tiny", "--name", NAME, "--engine", "docker",
                  "--emit-compose", str(written), "--port", str(free_port()))  # fmt: skip
    assert done.returncode == 0, done.stderr
    return written


@pytest.fixture(scope="module")
def running(compose: list[str], file: Path, docker: Docker) -> Iterator[dict[str, Any]]:
    """The container that ``up`` started, as Docker sees it; it answers /ping."""
    (name,) = yaml.safe_load(file.read_text())["services"]
    begun = _run([*compose, "--file", str(file), "up", "--detach"])
    try:
        assert begun.returncode == 0, begun.stderr
        yield _healthy(docker, _container_of(docker, name))
    finally:
        _run([*compose, "--file", str(file), "down"])


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def _container_of(docker: Docker, service: str) -> str:
    label = f"label=com.docker.compose.service={service}"
    return docker.run("ps", "--all", "--quiet", "--filter", label, doing="looking").strip()


def _healthy(docker: Docker, container: str) -> dict[str, Any]:
    until = time.monotonic() + START_SECONDS
    while True:
        described = docker.inspect("container", container)
        assert described is not None
        ((published,),) = described["HostConfig"]["PortBindings"].values()
        if is_healthy(int(published["HostPort"])):
            return described
        log = docker.run("logs", "--tail", "20", container, doing="reading the log")
        assert described["State"]["Running"], log
        assert time.monotonic() < until, log
        time.sleep(0.2)


def test_it_answers_and_drafts(running: dict[str, Any]) -> None:
    ((published,),) = running["HostConfig"]["PortBindings"].values()
    port = int(published["HostPort"])
    body = {"model": "peagle/tiny", **request_body("What is re?", chat=True, max_tokens=24)}
    before = local.counters(port)
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
        connection.request("POST", "/v1/chat/completions", json.dumps(body),
                           {"Content-Type": "application/json"})  # fmt: skip
        answer = json.loads(connection.getresponse().read())
    assert answer["usage"]["completion_tokens"] == 24
    assert local.counters(port).since(before).accepted_tokens > 0


def test_it_may_do_what_the_container_of_local_up_may(
    running: dict[str, Any], image: dict[str, Any], docker: Docker
) -> None:
    """The same container, made (and not started) as `peagle local up` makes it."""
    plan = make_plan(Options(pair="tiny", name=NAME), load_catalog())
    host = LocalRunner(show_image(docker, image["name"]))
    environment, _ = host.local_environment(plan)
    port = int(running["HostConfig"]["PortBindings"]["8080/tcp"][0]["HostPort"])
    chosen = host.container(plan, environment, port)
    _, *arguments = run_arguments(chosen)
    maker = Docker({**docker.environment, **chosen.environment})
    made = maker.run("create", *arguments, doing="making it").strip()
    try:
        ours = docker.inspect("container", made)
    finally:
        docker.run("rm", "--volumes", made, doing="removing it")
    assert ours is not None
    compose, expected = _settings_of(running), _settings_of(ours)
    assert compose == expected
    assert expected["HostConfig"]["ReadonlyRootfs"] is True
    assert expected["HostConfig"]["CapDrop"] == ["ALL"]
    assert expected["Mounts"]["/var/cache/peagle"] == ("volume", CACHE_VOLUME, True)


def _settings_of(container: dict[str, Any]) -> dict[str, Any]:
    """What decides over a container, without names and the order of lists."""
    settings, config = container["HostConfig"], container["Config"]
    mounts = {
        mount["Destination"]: (mount["Type"], mount.get("Name") or mount["Source"], mount["RW"])
        for mount in container["Mounts"]
    }
    bare = {name: settings[name] or None for name in SAME}
    bare["SecurityOpt"] = [mount.replace(":true", "") for mount in settings["SecurityOpt"]]
    return {
        "HostConfig": bare,
        "Mounts": mounts,
        "Env": set(config["Env"]),
        "User": config["User"],
        "Cmd": config["Cmd"],
        "Entrypoint": config["Entrypoint"],
        "Healthcheck": {n: v for n, v in config["Healthcheck"].items() if v},
    }


def test_a_rendered_file_builds_its_image(
    compose: list[str], image: dict[str, Any], docker: Docker, peagle: Peagle, tmp_path: Path
) -> None:
    """On the CPU's base, as AWS's is not here."""
    rendered = peagle("render", "compose", "tiny", "-o", str(tmp_path / NAME))
    assert rendered.returncode == 0, rendered.stderr
    command = [*compose, "--file", str(tmp_path / NAME / "compose.yaml")]
    (service,) = yaml.safe_load(Path(command[-1]).read_text())["services"].values()
    assert _run([*command, "config", "--quiet"]).stderr == ""
    built = _run([*command, "build", "--build-arg", f"BASE={image['name']}"])
    try:
        assert built.returncode == 0, built.stderr
        assert show_image(docker, service["image"]).pair == "peagle/tiny+p-eagle"
    finally:
        docker.run("image", "rm", "--force", service["image"], doing="removing it")


def test_compose_reads_every_value_as_it_is(
    compose: list[str], image: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "a \"b\" $HOME 'c' é:ro,x"
    folder.mkdir()
    (folder / "there").touch()
    values = {"NASTY": "$HOME ${A:-b} $$x 'it''s' \"q\" \\\n# no\n: - {é} `c`\ty", "TYPED": "1e3"}
    file = tmp_path / "compose.yaml"
    text = compose_text(
        "nasty", name="nasty", image=image["name"], environment=values,
        mounts={"/mnt/x": str(folder)}, address="127.0.0.1:0", start_seconds=60,
    )  # fmt: skip
    file.write_text(text)
    program = "import json, os; print(json.dumps([dict(os.environ), os.listdir('/mnt/x')]))"
    command = [*compose, "--file", str(file)]
    try:
        done = _run(
            [*command, "run", "--rm", "-T", "--entrypoint", "python3", "nasty", "-c", program]
        )
    finally:
        _run([*command, "down"])
    assert done.returncode == 0, done.stderr
    environment, files = json.loads(done.stdout)
    assert {name: environment[name] for name in values} == values
    assert files == ["there"]


def test_down_leaves_no_container_but_the_cache(
    running: dict[str, Any], compose: list[str], file: Path, docker: Docker
) -> None:
    done = _run([*compose, "--file", str(file), "down"])
    assert done.returncode == 0, done.stderr
    assert docker.inspect("container", running["Id"]) is None
    assert docker.inspect("volume", CACHE_VOLUME) is not None
