"""What all tests share: a home of their own, no AWS account, and the command line."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import Peagle
from toolkit.errors import EngineMissing
from toolkit.local.engine import find_engine

DEFAULT_VLLM = "0.28.0"


def pytest_configure(config: pytest.Config) -> None:
    """Remember the engine of the user's own home before tests get another home."""
    with contextlib.suppress(EngineMissing):
        os.environ.setdefault("PEAGLE_ENGINE_PYTHON", str(find_engine(DEFAULT_VLLM).python))


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


@pytest.fixture(scope="session")
def peagle() -> Peagle:
    """Run ``peagle`` as a process: ``peagle("plan", "tiny", "--json")``."""

    def run(*arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "toolkit.cli", *arguments]
        options: dict[str, object] = {"capture_output": True, "text": True, "timeout": 300}
        return subprocess.run(command, check=False, **{**options, **settings})  # type: ignore[call-overload,no-any-return]

    return run


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ``$PEAGLE_HOME`` for one test alone."""
    monkeypatch.setenv("PEAGLE_HOME", str(tmp_path))
    return tmp_path
