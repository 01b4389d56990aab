"""torch for CPUs: one locked wheel per Python and machine, from one source at a time.

pip would look for a name in all its indexes at once, and the same version may be in several. So
the wheel is taken from the folders of ``PIP_FIND_LINKS`` without any index, else by its address on
PyTorch's index for CPUs; its hash is checked either way.
"""

from __future__ import annotations

import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from peagle.engine.machine import run_python
from peagle.errors import EngineError, Fix, UserError

PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""Where PyTorch publishes torch for CPUs; the hashes of the lock are from there."""

PYTHONS = ("3.11", "3.12", "3.13")
"""The versions of Python that the engine runs with."""

_PRINT_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"
_LOCKED = re.compile(
    r'^torch==(\S+) ; python_version == "(.+?)" and platform_machine == "(.+?)" '
    r"--hash=(sha256:[0-9a-f]{64})$",
    re.MULTILINE,
)

Run = Callable[[Sequence[str]], int]
"""Runs a command with its output in the log; returns its exit status."""


@dataclass(frozen=True)
class Wheel:
    """A locked wheel of torch."""

    version: str
    python: str
    machine: str
    hash: str

    @property
    def name(self) -> str:
        """The file's name."""
        abi = f"cp{self.python.replace('.', '')}"
        return f"torch-{self.version}-{abi}-{abi}-manylinux_2_28_{self.machine}.whl"

    @property
    def address(self) -> str:
        return f"{PYTORCH_CPU_INDEX}/{quote(self.name)}"


def locked_wheels(lock: Path) -> tuple[Wheel, ...]:
    """The wheels of a ``torch.txt``, in its order."""
    return tuple(Wheel(*found) for found in _LOCKED.findall(lock.read_text(encoding="utf-8")))


def python_version(python: Path) -> str:
    """``3.11`` of that Python; "" when it does not run."""
    return run_python(python, _PRINT_VERSION)


def install_torch(pip: Sequence[str], lock: Path, run: Run, log: Path) -> None:
    """Install the locked wheel for the Python of an environment.

    ``pip`` is ``pip install`` of that environment with its options, its Python first; ``lock`` is
    the ``torch.txt`` of a version of vLLM, and ``run`` appends to ``log``. Raises UserError when
    the lock has no wheel for this Python and machine, and EngineError when the wheel cannot be
    downloaded or differs from its hash.
    """
    python = Path(pip[0])
    version, machine = python_version(python), platform.machine()
    wheels = {one.python: one for one in locked_wheels(lock) if one.machine == machine}
    if version not in wheels:
        raise UserError(
            f"no wheel of torch is locked for Python {version} on {machine}",
            f"use Python {', '.join(wheels)}" if wheels else "use a machine with x86_64 or aarch64",
            "unusable-python",
        )
    wheel = wheels[version]
    if run([*pip, "--no-index", "--require-hashes", "-r", str(lock)]) == 0:
        return
    if _hash_differs(log):
        raise _hash_error(wheel, "a folder of PIP_FIND_LINKS", log)
    before = len(log.read_bytes())
    requirement = python.parents[1] / "torch.txt"
    requirement.write_text(f"torch @ {wheel.address} --hash={wheel.hash}\n", encoding="utf-8")
    options = ["--no-index", "--retries", "1", "--timeout", "30"]
    if run([*pip, *options, "--require-hashes", "-r", str(requirement)]) == 0:
        return
    if _hash_differs(log):
        raise _hash_error(wheel, PYTORCH_CPU_INDEX, log)
    output = log.read_bytes()[before:].decode("utf-8", "replace")
    if "Downloading http" in output:
        raise EngineError(
            f"{wheel.name} cannot be installed", f"read the log: {log}", code="installation-failed"
        )
    others = [one for one in wheels.values() if one != wheel and _is_available(one, pip, run)]
    raise EngineError(
        f"the wheel {wheel.name} is missing: no folder of PIP_FIND_LINKS has it, and "
        f"{PYTORCH_CPU_INDEX}, where it comes from, cannot be reached (log: {log})",
        _fix(others, lock.parent.name),
        "wheel-missing",
    )


def _hash_differs(log: Path) -> bool:
    return "DO NOT MATCH THE HASHES" in log.read_text(encoding="utf-8", errors="replace")


def _hash_error(wheel: Wheel, source: str, log: Path) -> EngineError:
    return EngineError(
        f"{wheel.name} of {source} is not the locked wheel: its hash differs",
        f"remove that file or use another source; the log is {log}",
        "wheel-differs",
    )


def _is_available(wheel: Wheel, pip: Sequence[str], run: Run) -> bool:
    """Whether a folder of PIP_FIND_LINKS has torch for that other Python."""
    options = ["--no-index", "--dry-run", "--target", str(Path(pip[0]).parents[1] / "none")]
    options += ["--python-version", wheel.python, f"torch=={wheel.version}"]
    return run([*pip, *options]) == 0


def _fix(others: Sequence[Wheel], vllm: str) -> Fix:
    """Another Python whose wheel is available, by its path where it is installed."""
    for wheel in others:
        for python in _installed(wheel.python):
            command = ("peagle", "engine", "install", "--vllm", vllm, "--python", str(python))
            return Fix(f"the wheel for Python {wheel.python} is here; use that Python", command)
    elsewhere = "let pip reach it, or set PIP_FIND_LINKS to a folder or page with the wheel"
    if not others:
        return Fix(elsewhere)
    known = ", ".join(one.python for one in others)
    return Fix(f"{elsewhere}; or install Python {known}, whose wheel is here")


def _installed(version: str) -> Iterator[Path]:
    """The Pythons of that version on this machine that run."""
    names = (f"python{version}", "python3", "python", sys.executable)
    for found in dict.fromkeys(filter(None, map(shutil.which, names))):
        if python_version(Path(found)) == version:
            yield Path(found)
