"""Install aiperf, the load generator, in an environment of its own, from a lock file.

It shares no package with the toolkit or the engine. Of its dependencies only those are installed
that sending prepared requests needs.
"""

from __future__ import annotations

import hashlib
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from peagle.data import data_folder
from peagle.engine.locked import (
    check_disk,
    check_import,
    check_python,
    exclusive_environment,
    install_locked,
    new_environment,
)
from peagle.errors import Fix, UserError
from peagle.images.docker import Progress
from peagle.store import home, read_json, write_json

AIPERF = "0.13.0"
"""The version in the lock file."""

NEEDED_BYTES = 2**30
"""Disk space for the environment and for unpacking."""

_MARKER = "aiperf.json"
"""The last file of an installation."""


class SenderMissing(UserError, code="bench-missing"):
    """The load generator is not installed on this machine."""


@dataclass(frozen=True)
class Installation:
    """aiperf as installed: its program, and the size and the time that installing it took."""

    program: Path
    version: str
    megabytes: int
    seconds: float


def install_sender(
    python: Path | None = None, again: bool = False, progress: Progress = lambda line: None
) -> Installation:
    """Install aiperf unless it is installed; with ``again`` in any case.

    ``python`` runs it; by default the Python of this program. Raises UserError for an unsuitable
    Python or disk, and EngineError when pip or aiperf fails.
    """
    folder = _folder()
    with exclusive_environment(folder, progress):
        if again or installed_sender() is None:
            check_python(python or Path(sys.executable))
            check_disk(folder, NEEDED_BYTES, "aiperf")
            started = time.monotonic()
            _build(folder, python or Path(sys.executable), progress)
            marker = {
                "aiperf": AIPERF,
                "lock": _digest(),
                "megabytes": round(_bytes(folder) / 1e6),
                "seconds": round(time.monotonic() - started, 1),
            }
            write_json(folder / _MARKER, marker)
    return find_sender()


def installed_sender() -> Installation | None:
    """The installation from this toolkit's lock file; ``None`` without one, or with another's."""
    folder = _folder()
    try:
        marker = read_json(folder / _MARKER)
    except ValueError:
        return None
    program = folder / "bin" / "aiperf"
    if not isinstance(marker, dict) or marker.get("lock") != _digest() or not program.exists():
        return None
    size, seconds = marker.get("megabytes"), marker.get("seconds")
    return Installation(
        program,
        AIPERF,
        size if isinstance(size, int) else 0,
        seconds if isinstance(seconds, float | int) else 0.0,
    )


def find_sender() -> Installation:
    """The installation. Raises SenderMissing with the command that installs it."""
    found = installed_sender()
    if found is None:
        message = f"the load generator aiperf {AIPERF} is not installed on this machine"
        raise SenderMissing(message, Fix("install it", ("peagle", "bench", "install")))
    return found


def _folder() -> Path:
    return home() / "engines" / f"aiperf-{AIPERF}"


def _lock() -> Path:
    return data_folder("requirements") / "aiperf.txt"


def _digest() -> str:
    return hashlib.sha256(_lock().read_bytes()).hexdigest()


def _build(folder: Path, python: Path, progress: Progress) -> None:
    pip, log = new_environment(folder, python, progress)
    install_locked(pip, _lock(), log, progress)
    progress("checking that it can be imported")
    check_import(folder, "import aiperf.cli", log)


def _bytes(folder: Path) -> int:
    """The size of the files, without links to files elsewhere."""
    files = (path for path in folder.rglob("*") if not path.is_symlink() and path.is_file())
    return sum(path.stat().st_size for path in files)
