"""Virtual environments with a copy of this one's pip, to install which takes 5 s of processor
time."""

from __future__ import annotations

import shlex
import shutil
import sys
import venv
from pathlib import Path

import pip

_PIP = Path(pip.__path__[0])

_PYTHON = """#!/bin/sh
case "$*" in
*"-m venv "*) {python} "$@" --without-pip && cp -R {pip} "$4"/lib/python*/site-packages/ ;;
*) exec {python} "$@" ;;
esac
"""


def with_pip(folder: Path) -> None:
    """Make a virtual environment with pip there."""
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    shutil.copytree(_PIP, packages / "pip")


def python_with_pip(file: Path) -> Path:
    """Write a Python to ``file`` that makes virtual environments so, by ``-I -m venv FOLDER``."""
    words = {"python": shlex.quote(sys.executable), "pip": shlex.quote(str(_PIP))}
    file.write_text(_PYTHON.format(**words))
    file.chmod(0o755)
    return file
