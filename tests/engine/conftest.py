"""A sandbox with the real engine and the tiny pair: started once for all tests here."""

import contextlib
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from peagle.engine.machine import ENGINE_VARIABLE, Engine, find_engine, find_trainer
from peagle.errors import EngineMissing
from tests.conftest import DEFAULT_VLLM
from tests.engine.serving import script_environment
from tests.sandbox.sandboxes import Sandbox, started

Ask = Callable[[str, Any], Any]
"""Calls a function of asking.py, by its name, with an argument."""
TINY = "peagle-tiny"
FORKING = Path(__file__).parent / "forking"
"""With it on PYTHONPATH an engine starts in half of the CPU time."""


@pytest.fixture(scope="session")
def quick_engine(
    _nothing_of_this_machine: None, tmp_path_factory: pytest.TempPathFactory
) -> Engine | None:
    """The CPU engine with ``FORKING``, as a Python of its own; ``None`` without a CPU engine."""
    try:
        installed = find_engine(DEFAULT_VLLM)
    except EngineMissing:
        return None
    python = tmp_path_factory.mktemp("engine") / "python"
    path = f'{shlex.quote(str(_forking(python.parent)))}"${{PYTHONPATH:+:$PYTHONPATH}}"'
    command = f'exec {shlex.quote(str(installed.python))} "$@"'
    python.write_text(f"#!/bin/sh\nPYTHONPATH={path} {command}\n")
    python.chmod(0o755)
    return Engine(python, installed.vllm)


def _forking(folder: Path) -> Path:
    """The copy of ``FORKING`` that all workers of this run share; ``owner`` in it has the process
    with whose end its servers end."""
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    copy = shutil.copytree(FORKING, folder / "forking")
    (copy / "owner").write_text(str(os.getppid() if is_worker else os.getpid()))
    if not is_worker:
        return copy
    shared = folder.parents[1] / "forking"
    with contextlib.suppress(OSError):  # another worker was first
        copy.rename(shared)
    return shared


@pytest.fixture(scope="module", autouse=True)
def _use_quick_engine(quick_engine: Engine | None) -> Iterator[None]:
    """Every engine that these tests start is ``quick_engine``."""
    with pytest.MonkeyPatch.context() as patch:
        if quick_engine is not None:
            patch.setenv(ENGINE_VARIABLE, str(quick_engine.python))
        yield


@pytest.fixture(scope="session")
def engine(quick_engine: Engine | None) -> Engine:
    """The CPU engine; without it the tests that need it skip."""
    if quick_engine is None:
        pytest.skip(f"vLLM {DEFAULT_VLLM} is not installed (fix: peagle engine install)")
    return quick_engine


@pytest.fixture(scope="session")
def trainer() -> Path:
    """The trainer of heads for the CPU; without it the tests that need it skip."""
    try:
        return find_trainer(gpu=False)
    except EngineMissing:
        pytest.skip("the trainer is not installed (fix: peagle engine install --trainer)")


@pytest.fixture(scope="session")
def ask(engine: Engine) -> Iterator[Ask]:
    """One process that has imported vLLM, for all tests that call vLLM's own functions."""
    command = [str(engine.python), str(Path(__file__).with_name("asking.py"))]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=script_environment(),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        questions, answers = process.stdin, process.stdout

        def answer(function: str, argument: Any) -> Any:
            questions.write(f"{json.dumps([function, argument])}\n")
            questions.flush()
            reply = json.loads(answers.readline())
            assert reply is not None, "see the captured stderr"
            return reply

        yield answer


@pytest.fixture(scope="session")
def sandbox(engine: Engine) -> Iterator[Sandbox]:
    """A running sandbox in the tests' own home, where ``peagle`` finds it too."""
    with started(Sandbox(Path(os.environ["PEAGLE_HOME"]), engine.python)) as running:
        yield running


@pytest.fixture(scope="session")
def printed(sandbox: Sandbox) -> str:
    """What the first deploy of the tiny pair prints; its endpoint, ``TINY``, serves until
    test_update_vllm.py destroys it."""
    done = sandbox.peagle("deploy", "tiny", "--sandbox", "--yes")
    assert done.returncode == 0, done.stderr
    return done.stdout
