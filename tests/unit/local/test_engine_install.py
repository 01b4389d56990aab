"""``peagle engine install`` with a Python whose venv and pip give prepared answers."""

from __future__ import annotations

import ctypes
import json
import shlex
from pathlib import Path

import pytest

from peagle.data import data_folder
from peagle.engine import install
from peagle.engine.machine import (
    ENGINE_VARIABLE,
    MARKER,
    engine_folder,
    find_engine,
    installed_engines,
)
from peagle.errors import EngineError, EngineMissing, UserError
from tests.support import Peagle

VLLM = "0.28.0"
LOCK = data_folder("containers") / "engine" / VLLM

_PYTHON = r"""#!/bin/sh
case "$*" in
  *version_info*) echo 3.11; exit ;;
  *"-m venv"*) step=venv; mkdir -p "$4/bin"; cp "$0" "$4/bin/python" ;;
  *--extra-index-url*) step=index ;;
  *torch.txt*) step=torch ;;
  *requirements.txt*) step=packages ;;
  *api_server*) step=import ;;
esac
echo "$step" >>{folder}/steps
[ ! -f {folder}/$step ] || cat {folder}/$step
[ ! -f {folder}/$step.fails ]
"""


class FakePython:
    """A Python that notes the steps of an installation; they succeed unless told otherwise."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "python"
        self.path.write_text(_PYTHON.replace("{folder}", shlex.quote(str(folder))))
        self.path.chmod(0o755)
        self._folder = folder

    def prints(self, step: str, *lines: str, fails: bool = False) -> None:
        (self._folder / step).write_text("".join(f"{line}\n" for line in lines))
        if fails:
            (self._folder / f"{step}.fails").touch()

    def repair(self) -> None:
        """All steps succeed from now on."""
        for file in self._folder.glob("*.fails"):
            file.unlink()

    @property
    def steps(self) -> list[str]:
        return (self._folder / "steps").read_text().split()


@pytest.fixture
def python(tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> FakePython:
    """The Python for the engine, on a machine where nothing is installed."""
    monkeypatch.delenv(ENGINE_VARIABLE, raising=False)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: None)
    monkeypatch.setattr(install, "NEEDED_BYTES", 0)
    folder = tmp_path / "a python"
    folder.mkdir()
    return FakePython(folder)


def _install(python: FakePython) -> list[str]:
    """Install the engine; returns what is shown meanwhile."""
    shown: list[str] = []
    install.install_engine(VLLM, python.path, shown.append)
    return shown


def test_an_installed_engine_is_found_and_not_installed_again(
    python: FakePython, peagle: Peagle
) -> None:
    command = ("engine", "install", "--vllm", VLLM, "--python", str(python.path))
    first = peagle(*command, "--json")
    assert first.returncode == 0, first.stderr
    again = peagle(*command)

    document = json.loads(first.stdout)
    engine = find_engine(VLLM)
    assert document == {"vllm": VLLM, "python": str(engine.python), "was_installed": False}
    assert "checking that the server can be imported" in first.stderr
    assert again.stdout == f"vLLM {VLLM} is already installed: {engine.python}\n"
    assert installed_engines() == (engine,)
    assert python.steps == ["venv", "torch", "packages", "import"]


def test_status_shows_the_engine_in_use_the_others_and_what_is_missing(
    python: FakePython, peagle: Peagle, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = peagle("engine", "status")
    assert absent.stdout == (
        f"vLLM {VLLM} is not installed on this machine "
        f"(install it: peagle engine install --vllm {VLLM})\n"
    )
    _install(python)
    other = engine_folder("0.27.1")
    other.mkdir()
    (other / MARKER).write_text("{}")

    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)

    assert peagle("engine", "status").stdout.splitlines() == [
        f"vLLM {VLLM}: {engine_folder(VLLM) / 'bin' / 'python'}",
        f"also vLLM 0.27.1: {other / 'bin' / 'python'}",
        "missing system packages: libnuma1",
    ]


def test_progress_counts_tenths_of_the_packages(python: FakePython) -> None:
    lock = (LOCK / "requirements.txt").read_text().splitlines()
    total = sum(line[:1].isalnum() for line in lock)
    collected = [f"Collecting package{n}" for n in range(total)]
    python.prints("packages", *collected, "Installing collected packages: a, b")

    shown = _install(python)

    counts = [line for line in shown if line.startswith("downloading packages")]
    assert 10 <= len(counts) <= 11
    assert counts[0] == f"downloading packages: {total // 10} of {total}"
    assert shown.index("installing the packages") > shown.index(counts[-1])


def test_torch_comes_from_pytorchs_index_where_pips_sources_lack_it(python: FakePython) -> None:
    python.prints("torch", "ERROR: No matching distribution found for torch==1", fails=True)

    _install(python)

    assert python.steps == ["venv", "torch", "index", "packages", "import"]


def test_without_torch_anywhere_the_error_names_both_places(python: FakePython) -> None:
    missing = "ERROR: No matching distribution found for torch==1"
    python.prints("torch", missing, fails=True)
    python.prints("index", missing, fails=True)

    with pytest.raises(EngineError) as failed:
        _install(python)

    assert install.PYTORCH_CPU_INDEX in failed.value.message
    assert "PIP_FIND_LINKS" in failed.value.fix
    assert python.steps[-1] == "index"


@pytest.mark.parametrize(
    ("step", "output", "cause"),
    [
        ("torch", ("ERROR: THESE PACKAGES DO NOT MATCH", "bye"), "THESE PACKAGES DO NOT MATCH"),
        ("packages", ("Collecting a", "no space left"), "no space left"),
        (
            "import",
            ("Traceback:", "ImportError: libnuma.so.1", "note"),
            "ImportError: libnuma.so.1",
        ),
    ],
)
def test_a_failed_installation_is_no_engine_and_can_be_repeated(
    python: FakePython, step: str, output: tuple[str, ...], cause: str
) -> None:
    python.prints(step, *output, fails=True)

    with pytest.raises(EngineError) as failed:
        _install(python)

    assert failed.value.message.startswith(f"the installation failed: {cause}")
    log = engine_folder(VLLM).with_name(f"{engine_folder(VLLM).name}.log")
    assert str(log) in failed.value.fix
    assert output[0] in log.read_text()
    with pytest.raises(EngineMissing):
        find_engine(VLLM)
    python.repair()
    _install(python)
    assert find_engine(VLLM).python.exists()


def test_a_python_that_cannot_make_environments_leaves_nothing(python: FakePython) -> None:
    python.prints("venv", "ensurepip is not available", fails=True)

    with pytest.raises(UserError) as failed:
        _install(python)

    assert "python3-venv" in failed.value.fix
    assert not engine_folder(VLLM).exists()


def test_an_image_takes_the_packages_of_an_engine_from_the_lock_only(python: FakePython) -> None:
    _install(python)
    assert install.engine_packages(VLLM).python == "3.11"

    (engine_folder(VLLM) / MARKER).write_text('{"lock": "another"}')
    with pytest.raises(EngineMissing) as foreign:
        install.engine_packages(VLLM)
    assert foreign.value.command == ("peagle", "engine", "install", "--vllm", VLLM)
