"""Install vLLM for this machine's CPU: one virtual environment per version, from a lock file.

The marker is written last, so a partial installation is never used. An image for CPUs contains the
same packages.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import sys
from pathlib import Path

from peagle.data import data_folder
from peagle.engine.environment import Environment, check_environment, exclusive_environment
from peagle.engine.machine import (
    ENGINE_VARIABLE,
    MARKER,
    Engine,
    engine_folder,
    find_engine,
    install_fix,
    run_python,
)
from peagle.errors import EngineMissing, Fix, UserError
from peagle.images.build import Packages
from peagle.images.docker import Progress
from peagle.store import read_json, write_json

NEEDED_BYTES = 3 * 2**30
"""Disk space for the environment and for unpacking."""


def lockable_versions() -> tuple[str, ...]:
    return tuple(sorted(path.parent.name for path in _locks().glob("*/requirements.txt")))


def missing_libraries() -> tuple[str, ...]:
    """The system packages that vLLM needs and that are missing, by their Debian names."""
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError:
        return ("libnuma1",)
    return ()


def check_machine() -> None:
    """Raise UserError if no CPU engine can run on this machine."""
    if platform.system() != "Linux":
        raise UserError(
            f"vLLM for CPUs supports Linux only; this is {platform.system()}",
            "use a Linux machine, or deploy to AWS",
            "system-unsupported",
        )
    missing = missing_libraries()
    if missing:
        raise UserError(
            f"vLLM needs the system package {' '.join(missing)}",
            Fix("install it as root (Fedora: numactl-libs)", ("apt-get", "install", *missing)),
            "system-package-missing",
        )


def install_engine(
    vllm: str, python: Path | None = None, progress: Progress = lambda line: None
) -> Engine:
    """Install that version of vLLM, unless it is installed, and return it.

    ``python`` runs the engine; by default the Python of this program. Only one process installs a
    version at a time; others wait. Raises UserError for an unsuitable machine, Python or disk, and
    EngineError when uv or the engine fails.
    """
    lock = _locks() / vllm
    if not (lock / "requirements.txt").is_file():
        versions = ", ".join(lockable_versions())
        raise UserError(
            f"vLLM {vllm} cannot be installed: no lock file",
            f"choose --vllm from {versions}",
            "unknown-version",
        )
    check_machine()
    folder = engine_folder(vllm)
    with exclusive_environment(folder, progress):
        if not is_installed(vllm):
            python = python or Path(sys.executable)
            check_environment(python, folder, NEEDED_BYTES, "the engine")
            environment = Environment(folder, python, progress)
            environment.install_torch(lock / "torch.txt")
            environment.install(lock / "requirements.txt")
            progress("checking that the server can be imported")
            environment.check_import("import vllm.entrypoints.openai.api_server")
            write_json(folder / MARKER, {"vllm": vllm, "lock": _digest(lock)})
    return Engine(folder / "bin" / "python", vllm)


def is_installed(vllm: str) -> bool:
    """Whether the engine is completely installed from this toolkit's lock file."""
    folder = engine_folder(vllm)
    return (
        vllm in lockable_versions()
        and (folder / "bin" / "python").exists()
        and lock_of(folder, vllm) is not None
    )


def lock_of(folder: Path, vllm: str) -> str | None:
    """The digest of the lock file of the engine in ``folder``; ``None`` if it differs
    from this toolkit's, or cannot be read."""
    try:
        marker = read_json(folder / MARKER)
    except ValueError:
        return None
    digest = marker.get("lock") if isinstance(marker, dict) else None
    return str(digest) if digest and digest == _digest(_locks() / vllm) else None


def _locks() -> Path:
    return data_folder("containers") / "engine"


def _digest(lock: Path) -> str:
    texts = [(lock / name).read_bytes() for name in ("requirements.txt", "torch.txt")]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


_PRINT_PURELIB = (
    "import sys, sysconfig; print('%d.%d' % sys.version_info[:2], sysconfig.get_path('purelib'))"
)


def engine_packages(vllm: str) -> Packages:
    """The packages of the engine with that version of vLLM, for an image.

    Raises EngineMissing unless it is installed from the lock file.
    """
    engine = find_engine(vllm)
    lock = lock_of(engine.python.parent.parent, vllm)
    if lock is None:
        raise EngineMissing(
            f"the engine {engine.python} is not from the lock file, as an image requires",
            install_fix(vllm, f"unset {ENGINE_VARIABLE} and install the engine"),
        )
    version, _, folder = run_python(engine.python, _PRINT_PURELIB).partition(" ")
    return Packages(vllm, version, Path(folder), lock)
