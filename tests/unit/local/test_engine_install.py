"""``peagle engine install`` with a Python whose venv and pip give prepared answers."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shlex
from itertools import product
from pathlib import Path

import pytest

from peagle.data import data_folder
from peagle.engine import install
from peagle.engine.locked import new_environment
from peagle.engine.machine import (
    ENGINE_VARIABLE,
    MARKER,
    engine_folder,
    find_engine,
    installed_engines,
)
from peagle.engine.torch_wheel import PYTHONS, PYTORCH_CPU_INDEX, locked_wheels
from peagle.errors import EngineError, EngineMissing, UserError
from tests.support import Peagle, raises_code

VLLM = "0.28.0"
LOCK = data_folder("containers") / "engine" / VLLM

_PYTHON = r"""#!/bin/sh
case "$*" in
  *version_info*) echo 3.11; exit ;;
  *"-m venv"*) step=venv; mkdir -p "$4/bin"; cp "$0" "$4/bin/python" ;;
  *--dry-run*) step=look ;;
  *--retries*) step=index ;;
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


def test_torch_is_locked_for_every_python_and_machine() -> None:
    wheels = locked_wheels(LOCK / "torch.txt")

    machines = ("x86_64", "aarch64")
    assert {(one.python, one.machine) for one in wheels} == set(product(PYTHONS, machines))
    assert len({one.hash for one in wheels}) == len(wheels)
    lines = (LOCK / "torch.txt").read_text().splitlines()
    assert len(wheels) == sum(not line.startswith("#") for line in lines)


def test_torch_comes_from_pytorchs_index_alone_where_no_folder_has_it(python: FakePython) -> None:
    python.prints("torch", "ERROR: ResolutionImpossible", fails=True)

    _install(python)

    assert python.steps == ["venv", "torch", "index", "packages", "import"]
    requirement = (engine_folder(VLLM) / "torch.txt").read_text()
    wheel = f"torch-2.13.0%2Bcpu-cp311-cp311-manylinux_2_28_{platform.machine()}.whl"
    assert requirement.startswith(f"torch @ {PYTORCH_CPU_INDEX}/{wheel} --hash=sha256:")


@pytest.mark.parametrize("at_hand", [True, False])
def test_a_missing_wheel_is_named_with_its_source_and_the_python_that_would_do(
    python: FakePython, at_hand: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    python.prints("torch", "ERROR: ResolutionImpossible", fails=True)
    python.prints("index", "ERROR: Name or service not known", fails=True)
    python.prints("look", fails=not at_hand)
    other = python.path.with_name("python3.12")
    other.write_text("#!/bin/sh\necho 3.12\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", f"{other.parent}{os.pathsep}{os.environ['PATH']}")

    with raises_code("wheel-missing", EngineError) as failed:
        _install(python)

    wheel = f"torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_{platform.machine()}.whl"
    assert wheel in failed.value.message
    assert PYTORCH_CPU_INDEX in failed.value.message
    command = ("peagle", "engine", "install", "--vllm", VLLM, "--python", str(other))
    assert failed.value.command == (command if at_hand else ())
    assert at_hand or "PIP_FIND_LINKS" in failed.value.fix


@pytest.mark.parametrize("step", ["torch", "index"])
def test_a_wheel_that_is_not_the_locked_one_ends_the_installation(
    python: FakePython, step: str
) -> None:
    python.prints("torch", "ERROR: ResolutionImpossible", fails=True)
    python.prints(step, "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", fails=True)

    with raises_code("wheel-differs", EngineError):
        _install(python)

    assert python.steps[-1] == step


def test_a_machine_without_a_locked_wheel_is_refused(
    python: FakePython, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")

    with raises_code("unusable-python", UserError) as failed:
        _install(python)

    assert "riscv64" in failed.value.message


@pytest.mark.parametrize(
    ("step", "output", "cause"),
    [
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

    assert failed.value.command == ("apt-get", "install", "python3-venv")
    assert not engine_folder(VLLM).exists()


def test_an_image_takes_the_packages_of_an_engine_from_the_lock_only(python: FakePython) -> None:
    _install(python)
    assert install.engine_packages(VLLM).python == "3.11"

    (engine_folder(VLLM) / MARKER).write_text('{"lock": "another"}')
    with pytest.raises(EngineMissing) as foreign:
        install.engine_packages(VLLM)
    assert foreign.value.command == ("peagle", "engine", "install", "--vllm", VLLM)


def test_an_environment_below_a_link_does_not_need_the_link(tmp_path: Path) -> None:
    real, link, python = tmp_path / "engines", tmp_path / "link", tmp_path / "python"
    real.mkdir()
    link.symlink_to(real)
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)

    pip, log = new_environment(link / "env", python, lambda line: None)

    assert (pip[0], log) == (str(real / "env" / "bin" / "python"), real / "env.log")
