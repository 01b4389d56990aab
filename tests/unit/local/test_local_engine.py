"""Finding and installing engines."""

from __future__ import annotations

import ctypes
import platform
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from peagle.engine import install
from peagle.engine.machine import (
    ENGINE_VARIABLE,
    MARKER,
    Engine,
    engine_folder,
    find_engine,
    installed_engines,
)
from peagle.errors import EngineMissing, UserError
from peagle.store import locked
from tests.support import raises_code

VLLM = "0.28.0"


@pytest.fixture
def no_engine(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home where nothing is installed."""
    monkeypatch.delenv(ENGINE_VARIABLE, raising=False)
    return own_home


@pytest.mark.thorough
def test_the_users_own_engine_is_used(
    no_engine: Path, stand_in: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENGINE_VARIABLE, str(stand_in.python))

    assert find_engine(VLLM) == stand_in
    assert installed_engines() == (stand_in,)


def test_a_users_engine_of_another_version_is_refused(
    no_engine: Path, stand_in: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENGINE_VARIABLE, str(stand_in.python))

    with pytest.raises(EngineMissing) as caught:
        find_engine("0.31.0")

    assert "has vLLM 0.28.0; vLLM 0.31.0 is needed" in caught.value.message


def test_an_incomplete_installation_is_no_engine(no_engine: Path) -> None:
    python = engine_folder(VLLM) / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)

    with pytest.raises(EngineMissing) as caught:
        find_engine(VLLM)

    assert caught.value.command[:3] == ("peagle", "engine", "install")

    (engine_folder(VLLM) / MARKER).write_text("{}")
    assert find_engine(VLLM) == Engine(python, VLLM)


def test_a_version_without_a_lock_is_refused_with_the_known_versions(no_engine: Path) -> None:
    with raises_code("unknown-version", UserError) as caught:
        install.install_engine("0.1.0")

    assert VLLM in caught.value.fix


def test_another_system_is_refused(no_engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")

    with raises_code("system-unsupported", UserError) as caught:
        install.install_engine(VLLM)

    assert "Darwin" in caught.value.message


def test_a_missing_library_names_its_package(
    no_engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)

    with raises_code("system-package-missing", UserError) as caught:
        install.install_engine(VLLM)

    assert caught.value.command == ("apt-get", "install", "libnuma1")


def test_a_full_disk_is_refused_before_any_download(
    no_engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "NEEDED_BYTES", 2**60)

    with raises_code("disk-full", UserError) as caught:
        install.install_engine(VLLM)
    assert "PEAGLE_HOME" in caught.value.fix
    assert not engine_folder(VLLM).exists()


@pytest.mark.parametrize("python", [Path("/nowhere/python"), Path("/bin/ls")])
def test_an_invalid_python_is_refused(no_engine: Path, python: Path) -> None:
    with raises_code("unusable-python", UserError) as caught:
        install.install_engine(VLLM, python)

    assert "--python" in caught.value.fix


def test_concurrent_installations_wait_for_each_other(
    no_engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Path] = []
    waiting = threading.Event()

    class Made:
        def __init__(self, folder: Path, *others: object) -> None:
            (folder / "bin").mkdir(parents=True)
            (folder / "bin" / "python").symlink_to(sys.executable)
            built.append(folder)

        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *arguments: None

    monkeypatch.setattr(install, "Environment", Made)
    folder = engine_folder(VLLM)
    with locked(folder.parent / f"{folder.name}.lock"):
        second = threading.Thread(
            target=install.install_engine,
            args=(VLLM,),
            kwargs={"progress": lambda line: waiting.set()},
        )
        second.start()
        assert waiting.wait(10)
        assert built == []
    second.join(10)

    assert built == [folder]
    assert install.install_engine(VLLM) == find_engine(VLLM)
    assert built == [folder]
