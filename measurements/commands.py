"""The toolkit's commands, run in a home of their own with the engine of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def temporary_home() -> Iterator[Path]:
    """A home that is removed after the block, for this process and the commands that it runs."""
    from peagle.engine.machine import find_engine

    os.environ.setdefault("PEAGLE_ENGINE_PYTHON", str(find_engine("0.28.0").python))
    with tempfile.TemporaryDirectory() as home:
        os.environ["PEAGLE_HOME"] = home
        yield Path(home)


def run_peagle(*arguments: str) -> str:
    """What the command writes to stdout. Raises CalledProcessError if it fails."""
    command = [sys.executable, "-m", "peagle.cli", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
