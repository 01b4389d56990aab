"""What the jobs of both hosts begin with: a folder with nothing but Python, git and a shell."""

from __future__ import annotations

import os
import subprocess
import venv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

_KEPT = ("LANG", "TMPDIR", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
_KEPT_PREFIXES = ("PIP_", "HTTP", "http", "NO_PROXY", "no_proxy")
"""Variables of this machine that a job gets: how packages are reached."""


@dataclass(frozen=True)
class StepOutput:
    """A step that ran: its commands, its output and exit code."""

    source: str
    name: str
    commands: str
    output: str
    code: int


@dataclass(frozen=True)
class Place:
    """Where a host runs the jobs of a ``repository``. ``account`` are the variables with which AWS
    is reached, ``packages`` where pip finds the wheel, ``engines`` a folder for installed load
    generators; ``show`` gets what ran."""

    repository: Path
    folder: Path
    account: Mapping[str, str]
    packages: str
    engines: Path
    show: Callable[[StepOutput], None]

    def git(self, *words: str) -> bytes:
        """What git prints in the repository."""
        command = ["git", "-C", str(self.repository), *words]
        return subprocess.run(command, check=True, capture_output=True).stdout

    def checkout(self, folder: Path, commit: str) -> None:
        """A clone with this commit."""
        for words in (
            ("clone", "-q", str(self.repository), str(folder)),
            ("-C", str(folder), "checkout", "-q", commit),
        ):
            subprocess.run(["git", *words], check=True)

    def begin(self, machine: Path) -> dict[str, str]:
        """Make the folders ``work``, ``bin`` and ``peagle`` of a machine; its variables."""
        home = machine / "peagle"
        for one in (machine / "work", home, machine / "bin"):
            one.mkdir(parents=True)
        (home / "engines").symlink_to(self.engines)
        return {
            **{one: text for one, text in os.environ.items() if _is_kept(one)},
            "HOME": str(machine),
            "PEAGLE_HOME": str(home),
            "PIP_FIND_LINKS": self.packages,
            "PIP_QUIET": "2",  # its warnings are about this machine
            "PATH": f"{machine / 'python/bin'}:{machine / 'bin'}:{os.environ['PATH']}",
        }


def new_python(machine: Path) -> None:
    """This machine's Python, without packages: the version that is asked for may not be here."""
    venv.create(machine / "python", with_pip=True, symlinks=True)


def _is_kept(name: str) -> bool:
    return name in _KEPT or name.startswith(_KEPT_PREFIXES)
