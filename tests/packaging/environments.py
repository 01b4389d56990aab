"""Virtual environments with a copy of this one's pip, to install which takes 5 s of processor
time."""

import shutil
import venv
from pathlib import Path

import pip

_PIP = Path(pip.__path__[0])


def with_pip(folder: Path) -> None:
    """Make a virtual environment with pip there."""
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    shutil.copytree(_PIP, packages / "pip")
