"""Whether an engine for the CPU can compile: it needs a C++ compiler, and Python's headers.

Source: torch 2.x, ``torch/_inductor/cpp_builder.py`` (calls ``g++``, and includes ``Python.h``).
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from toolkit.errors import DockerMissing, EngineError, NotFound, UserError
from toolkit.images import Docker
from toolkit.images.show import Image

COMPILER = "g++"

_ASK = f"""
import os, shutil, sysconfig
header = os.path.join(sysconfig.get_path("include"), "Python.h")
if not shutil.which("{COMPILER}"):
    print("{COMPILER}")
if not os.path.exists(header):
    print(header)
"""


def check_compiler(python: Path) -> None:
    """Raise UserError when the engine of that Python cannot compile on this machine."""
    asked = subprocess.run(
        [str(python), "-I", "-c", _ASK], capture_output=True, text=True, check=False
    )
    _refuse(
        asked.stdout.splitlines(),
        "this machine has no",
        "install them (Debian: g++ and python3-dev)",
    )


def check_compiler_in(docker: Docker, image: Image) -> None:
    """The same for an engine in a container of that image."""
    try:
        said = docker.run("run", "--rm", "--network", "none", "--entrypoint", "python3", image.id,
                          "-c", _ASK, doing=f"looking for {COMPILER} in the image")  # fmt: skip
    except (DockerMissing, NotFound, EngineError):
        return  # An image that cannot even be asked fails at its start, with its own words.
    _refuse(
        said.splitlines(),
        f"the image {image.name} has no",
        "build it with --base of an image that has them, or leave out --engine docker",
    )


def _refuse(missing: list[str], where: str, fix: str) -> None:
    if missing:
        raise UserError(f"the model cannot be compiled: {where} {' and no '.join(missing)}", fix)
