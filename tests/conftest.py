"""What all tests share: a home of their own, no AWS account, and the command line."""

import contextlib
import functools
import gc
import itertools
import os
import re
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import botocore.hooks
import botocore.session
import botocore.useragent
import hypothesis
import pytest
from hypothesis.internal.conjecture import providers

from peagle.checkpoints import contents
from peagle.data import BUNDLED_CATALOG
from peagle.engine.machine import ENGINE_VARIABLE, TRAINER_VARIABLE, find_engine, find_trainer
from peagle.errors import EngineMissing
from peagle.planning import make_plan
from tests.support import FROZEN_CATALOG, Peagle, once_per_options, run_as_process, run_in_process

DEFAULT_VLLM = "0.28.0"
QUICK, USUAL = "not thorough and not exhaustive", "not exhaustive"
"""The marker expressions of ``make unit`` and ``make test``; ``make test-all`` has none."""
_SANITIZE = "sanitize_user_agent_string_component"


def pytest_configure(config: pytest.Config) -> None:
    """Before any module is imported: the frozen catalogue, and the engine of the user's own home,
    since tests get another home. Compiled files are kept, since so many processes need them."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.pop("COLUMNS", None)  # pytest-xdist sets it; output is as wide as in a pipe
    sys.dont_write_bytecode = False
    # In the background of a shell it is ignored, and so it would be in every program of a test.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ[BUNDLED_CATALOG] = str(FROZEN_CATALOG)
    # All sessions share what botocore has read of its service descriptions.
    botocore.session.create_loader = functools.cache(botocore.session.create_loader)
    # And what it finds out about its own functions for every session, client and request.
    for module, name in ((botocore.hooks, "accepts_kwargs"), (botocore.useragent, _SANITIZE)):
        setattr(module, name, functools.cache(getattr(module, name)))
    # On a busy machine any example may take long.
    examples = {QUICK: 30, USUAL: 50}.get(config.option.markexpr, 100)
    hypothesis.settings.register_profile(
        "tests", deadline=None, database=None, max_examples=examples
    )
    hypothesis.settings.load_profile("tests")
    if config.option.markexpr == QUICK:
        # Nor are the constants of all loaded modules tried: each worker would read their source.
        providers._get_local_constants = lambda: providers._local_constants
    with contextlib.suppress(EngineMissing):
        os.environ.setdefault(ENGINE_VARIABLE, str(find_engine(DEFAULT_VLLM).python))
    with contextlib.suppress(EngineMissing):
        os.environ.setdefault(TRAINER_VARIABLE, str(find_trainer(gpu=False)))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """One more than processors in ``make test``: some tests wait for processes and timeouts."""
    return (os.cpu_count() or 1) + int(config.option.markexpr != QUICK)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collecting makes no garbage that is worth the search for it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.set_threshold(200_000, 20, 20)  # collections take a sixth of the time of short commands


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Quick tests first. With pytest-xdist slow tests that share something stay on one worker, so
    that it is made once; and a worker that is free takes the longest group that is left, so that
    all workers end together."""
    grouped = [(_group(item), item) for item in items]
    quick = [item for group, item in grouped if not group]
    slow = [(group, item) for group, item in grouped if group]
    slow.sort(key=lambda pair: (-_SECONDS.get(pair[0], _FEW_SECONDS), pair[0], pair[1].path))
    for group, item in slow:
        item.add_marker(pytest.mark.xdist_group(group))
    items[:] = [*quick, *(item for _, item in slow)]


_SECONDS = {
    "sandbox with sandbox, from s": 400, "sandbox with sandbox": 300, "engine with sandbox": 230,
    "docker": 200, "test_owners_terraform.py": 120, "test_training_loop.py": 600,
    "test_sandbox_clients.py": 110, "test_warm_vllm.py": 110,
    "test_refusals_vllm.py": 85, "test_bench_load_vllm.py": 50, "test_faults_sample.py": 45,
    "test_local_vllm.py": 35, "test_bench_vllm.py": 35, "engine with ask": 30,
    "test_checkov.py": 24, "test_cdk.py": 24, "test_serve_vllm.py": 20, "test_cfn_lint.py": 20,
    "test_wheel.py": 17,
}  # fmt: skip
"""What the longest groups take on one processor, by the last profile; that of the sandbox's
tests is divided by their number."""
_FEW_SECONDS = 10
_SLOW = ("install", "sandbox", "engine", "docker")
_SLOW_FILES = ("test_cdk.py", "test_cfn_lint.py", "test_checkov.py", "test_terraform.py")
"""Also slow; test_cdk.py loads the CDK into Node.js, which each worker would do again."""
_OWN_SANDBOX = ("test_owners_terraform.py", "test_sandbox_clients.py", "test_training_loop.py")
"""Modules so long that a sandbox of their own costs less than that a worker ends later."""


def pytest_collection_finish(session: pytest.Session) -> None:
    """The garbage collector need not look again at all modules and tests: a tenth of the time. To
    look for garbage among them first would take most of a second in each worker.

    A version of pytest-xdist that ignores the groups would start every engine twice.
    """
    gc.freeze()
    grouped = [item for item in session.items if item.get_closest_marker("xdist_group")]
    if getattr(session.config.option, "loadgroup", False):
        assert all("@" in item.nodeid for item in grouped), "pytest-xdist ignores xdist_group"


def _group(item: pytest.Item) -> str:
    """Of a slow test what it shares with others: one Docker engine, one sandbox, or its module's
    fixtures. Empty for a quick test."""
    if item.get_closest_marker("docker"):
        return "docker"  # its tests make and remove the same images
    if item.path.name in _OWN_SANDBOX:
        return item.path.name
    for shared in ("sandbox", "ask"):
        if shared in getattr(item, "fixturenames", ()):
            return f"{item.path.parent.name} with {shared}{_half(item)}"
    slow = any(map(item.get_closest_marker, _SLOW)) or item.path.name in _SLOW_FILES
    return item.path.name if slow else ""


def _half(item: pytest.Item) -> str:
    """One worker with all tests of the sandbox could be the last: two workers, each with a sandbox,
    share them by the names of their modules."""
    return ", from s" if item.path.parent.name == "sandbox" and item.path.name >= "test_s" else ""


@pytest.fixture(scope="session", autouse=True)
def _nothing_of_this_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test sees the user's deployments, AWS account, or settings."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("AWS_", "SM_VLLM_", "HF_"))]:
            patch.delenv(name)
        nowhere = tmp_path_factory.mktemp("home")
        patch.setenv("PEAGLE_HOME", str(nowhere))
        patch.setenv("AWS_CONFIG_FILE", str(nowhere / "no-config"))
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(nowhere / "no-credentials"))
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield


@pytest.fixture(scope="session", autouse=True)
def _plans_are_made_once() -> Iterator[None]:
    """A plan depends on its options and catalogue alone, and commands need the same few again and
    again: a seventh of all the time of unit tests. Tests of planning call it themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "peagle.weights.own_target.make_plan", once_per_options(make_plan, FROZEN_CATALOG)
        )
        yield


@pytest.fixture(scope="session", autouse=True)
def _weights_of_the_catalogue_are_hashed_once() -> Iterator[None]:
    """Each test has a home of its own, where nothing is known of the weights that it deploys."""
    compute, computed = contents._computed, functools.cache(contents._computed)

    def of_file(path: Path, size: int) -> str:
        frozen = path.is_relative_to(FROZEN_CATALOG)
        return computed(path, size) if frozen else compute(path, size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contents, "_computed", of_file)
        yield


@pytest.fixture(scope="session")
def peagle() -> Peagle:
    """Run ``peagle`` in this process: ``peagle("plan", "tiny", "--json")``."""
    return run_in_process


@pytest.fixture(scope="session")
def peagle_process() -> Peagle:
    """Run ``peagle`` as a process, for tests of pipes, signals, terminals and of the start."""
    return run_as_process


_FOLDERS = itertools.count()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """pytest's own lists all folders of all tests before it makes the next one."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    folder = tmp_path_factory.getbasetemp() / f"{name}-{next(_FOLDERS)}"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ``$PEAGLE_HOME`` for one test alone."""
    monkeypatch.setenv("PEAGLE_HOME", str(tmp_path))
    return tmp_path
