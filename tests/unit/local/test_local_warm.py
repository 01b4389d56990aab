"""`peagle warm --local`: start a local engine, collect what it compiled, and stop it."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.exceptions import Abort
from click.testing import CliRunner

from peagle.catalog import load_catalog
from peagle.cli.main import cli
from peagle.cli.view import StatusLine
from peagle.engine import state as records
from peagle.engine.machine import Engine, check_compiler
from peagle.engine.runner import LocalRunner, compose_file, run_arguments
from peagle.engine.state import local_engines
from peagle.errors import Refused, UserError
from peagle.images.docker import Docker, Image, show_image
from peagle.planning import Options, make_plan
from peagle.warm import collect_locally as collect
from tests.support import raises_code
from tests.unit.containers.artifacts import artifact
from tests.unit.images.conftest import LABELS, FakeDocker, docker
from tests.unit.local.conftest import NAME, Command, PlanFor, processes_with
from tests.unit.local.stand_in_server import PACKED

__all__ = ["docker"]
KEY = "a" * 32


def environment_of(name: str) -> dict[str, str]:
    """The environment that the engine got."""
    document = json.loads((records.locate_folder(name) / "given.json").read_text())
    environment: dict[str, str] = document["environment"]
    return environment


@pytest.mark.thorough
def test_artifact_is_in_the_home_and_no_engine_is_left(engine_home: Path, command: Command) -> None:
    done = command("warm", "tiny", "--name", NAME, "--local")
    folder = engine_home / "warm"
    assert (folder / f"{KEY}.tar.gz").read_bytes() == PACKED
    assert sorted(os.listdir(folder)) == [f"{KEY}.json", f"{KEY}.tar.gz"]
    assert folder.stat().st_mode & 0o777 == 0o755
    assert f"peagle local up tiny --name {NAME} --compile" in done.stdout
    assert local_engines() == ()
    assert processes_with(f"PEAGLE_ML_ROOT={engine_home}") == []
    assert records.local_engine_names() == ()


@pytest.mark.thorough
def test_the_collecting_engine_compiles_and_gets_no_artifacts(
    engine_home: Path, artifacts: Path, plan_for: PlanFor
) -> None:
    environments: list[dict[str, str]] = []

    def progress(step: str, detail: str) -> None:
        if step == "packing":
            environments.append(environment_of(f"{NAME}-warm"))

    collect(plan_for(), artifacts, progress)
    (environment,) = environments
    assert environment["PEAGLE_WARM"] == "collect"
    assert environment["PEAGLE_CACHE"].startswith(str(engine_home)), "a folder of its own"
    assert "PEAGLE_WARM_FOLDER" not in environment
    assert "SM_VLLM_ENFORCE_EAGER" not in environment


@pytest.mark.thorough
def test_without_compiled_artifacts_the_command_fails_and_nothing_runs(
    engine_home: Path, plan_for: PlanFor
) -> None:
    with raises_code("nothing-compiled", Refused):
        collect(plan_for("eager"), engine_home / "warm", lambda step, detail: None)
    assert local_engines() == ()
    assert processes_with(f"PEAGLE_ML_ROOT={engine_home}") == []
    assert not (engine_home / "warm").exists()
    log = records.log_of(f"{NAME}-warm")
    assert log.is_file(), "its log is kept"
    assert not (log.parent / "collected").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("moment", ["starting", "packing", "fetching"])
def test_a_cancelled_pipeline_leaves_no_engine(
    engine_home: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """As Ctrl-C: a cancelled job gets SIGTERM."""

    def end(status: StatusLine, step: str, detail: str = "") -> None:
        if step == moment:
            os.kill(os.getpid(), signal.SIGTERM)

    def before(number: int, frame: object) -> None:
        """Replaces the default handler, which would end the tests."""

    monkeypatch.setattr(StatusLine, "show", end)
    words = ["--name", NAME, "--local", "--to", str(engine_home / "kept")]
    usual = signal.signal(signal.SIGTERM, before)
    try:
        done = CliRunner().invoke(cli, ["warm", "tiny", *words], standalone_mode=False)
        assert isinstance(done.exception, Abort)
        assert signal.getsignal(signal.SIGTERM) is before
    finally:
        signal.signal(signal.SIGTERM, usual)
    assert local_engines() == ()
    assert processes_with(f"PEAGLE_ML_ROOT={engine_home}") == []
    assert list(engine_home.glob("kept/*")) == []


@pytest.mark.thorough
def test_up_restores_what_this_machine_has(
    engine_home: Path, artifacts: Path, command: Command
) -> None:
    (artifacts / f"{KEY}.json").write_text(json.dumps({"sha256": "0" * 64}))
    (artifacts / "damaged.json").write_text("[" * 9999)
    command("local", "up", "tiny", "--name", NAME, "--compile")
    assert environment_of(NAME)["PEAGLE_WARM_SHA256"] == "0" * 64


@pytest.mark.thorough
def test_up_reports_a_warm_start(engine_home: Path, artifacts: Path, command: Command) -> None:
    subjects: list[dict[str, Any]] = []

    def progress(step: str, detail: str) -> None:
        if step == "packing":
            subjects.append(json.loads(environment_of(f"{NAME}-warm")["PEAGLE_WARM_SUBJECT"]))

    words = ("local", "up", "tiny", "--name", NAME, "--compile")
    collect(make_plan(Options(pair="tiny", name=NAME), load_catalog()), artifacts, progress)
    made = artifact(artifacts, subjects[0])
    output = command(*words).stdout
    document = json.loads(command(*words, "--json").stdout)
    assert f"\nWarm start: restored {made.files} files" in output
    assert f"(key {made.key}; a cold start takes 101 s)" in output
    assert document["warm_start"]["restored"] is True
    assert document["warm_start"]["key"] == made.key


def test_a_python_without_headers_cannot_compile(stand_in: Engine, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho /usr/include/python3.11/Python.h\n")
    python.chmod(0o755)
    with raises_code("compiler-missing", UserError) as caught:
        check_compiler(python)
    assert "/usr/include/python3.11/Python.h" in caught.value.message
    assert "python3-dev" in caught.value.fix
    check_compiler(stand_in.python)


# Containers of `peagle warm --local`: mounts of artifacts, and the image's compiler.
def image(docker: FakeDocker, **facts: Any) -> Image:
    docker.has_image("mine", LABELS, **facts)
    return show_image(Docker(), "mine")


@pytest.mark.thorough
def test_a_container_gets_artifacts_read_only(
    docker: FakeDocker, artifacts: Path, plan_for: PlanFor
) -> None:
    plan = plan_for()
    host = LocalRunner(image(docker), compiled=True)
    container = host.container(plan, {}, 8123)
    assert container.environment["PEAGLE_WARM_FOLDER"] == "/opt/ml/warm"
    assert "PEAGLE_WARM_SHA256" not in container.environment, "the folder is empty"
    assert f'type=bind,"src={artifacts}",dst=/opt/ml/warm,readonly' in run_arguments(container)
    (service,) = yaml.safe_load(compose_file(container))["services"].values()
    mount = {"type": "bind", "source": str(artifacts), "target": "/opt/ml/warm", "read_only": True}
    assert mount in service["volumes"]
    assert service["environment"]["PEAGLE_WARM_FOLDER"] == "/opt/ml/warm"
    artifacts.rmdir()
    without = host.container(plan, {}, 8123)
    assert "/opt/ml/warm" not in without.mounts
    assert "PEAGLE_WARM_FOLDER" not in without.environment


@pytest.mark.thorough
def test_a_collecting_container_uses_its_own_cache_and_leaves_nothing(
    docker: FakeDocker, own_home: Path, plan_for: PlanFor
) -> None:
    """Collecting empties its cache folder, and other engines may use the shared one."""

    def volumes(collecting: bool) -> list[str]:
        host = LocalRunner(image(docker), collecting=collecting)
        argv = run_arguments(host.container(plan_for(), {}, 1))
        assert "--rm" in argv, "which removes a volume without a name too"
        return [word for word in argv if word.startswith("type=volume")]

    assert volumes(collecting=True) == ["type=volume,dst=/var/cache/peagle"]
    assert volumes(collecting=False) == ["type=volume,src=peagle-cache,dst=/var/cache/peagle"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("digests", "known_as"),
    [([], "sha256:mine"), (["host:5000/mine@sha256:abc"], "sha256:abc")],
    ids=["never pushed", "pushed"],
)
def test_a_container_gets_the_digest_of_its_image(
    docker: FakeDocker, own_home: Path, plan_for: PlanFor, digests: list[str], known_as: str
) -> None:
    host = LocalRunner(image(docker, RepoDigests=digests))
    assert host.container(plan_for(), {}, 1).environment["PEAGLE_IMAGE_DIGEST"] == known_as
