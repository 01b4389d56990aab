"""The CPU engine's packages, for who puts them somewhere else: into a container image."""

from __future__ import annotations

import subprocess
from pathlib import Path

from toolkit.errors import EngineMissing
from toolkit.images.engine import Packages
from toolkit.local.engine import ENGINE_VARIABLE, find_engine
from toolkit.local.install import lock_of

_ASK = "import sys, sysconfig; print('%d.%d' % sys.version_info[:2], sysconfig.get_path('purelib'))"


def engine_packages(vllm: str) -> Packages:
    """The packages of the engine with that version of vLLM.

    Raises EngineMissing when there is none, or none from the locked list: what goes into an image
    must be what the list says.
    """
    engine = find_engine(vllm)
    lock = lock_of(engine.python.parent.parent, vllm)
    if lock is None:
        raise EngineMissing(
            f"the engine {engine.python} is not from the locked list, and an image's must be",
            f"unset {ENGINE_VARIABLE} if it is set, then peagle engine install --vllm {vllm}",
        )
    asked = [str(engine.python), "-I", "-c", _ASK]
    said = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60).stdout
    version, _, folder = said.strip().partition(" ")
    return Packages(vllm, version, Path(folder), lock)
