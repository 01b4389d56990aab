"""Our plugins for vLLM's CPU build: ``small_layers`` and ``quick_start``.

vLLM loads its plugins in all of its processes, by the entry points in ``plugin``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from peagle_serve.warm.cache_key import distributions, is_for_cpu

NAMES = ("peagle-small-layers", "peagle-quick-start")
"""The names of their entry points."""

FOLDER = Path(__file__).resolve().parent / "plugin"
"""The folder of their entry points, for PYTHONPATH."""

_ALLOWED = b"VLLM_PLUGINS"


def variables(environment: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """PYTHONPATH and, if set, the list of allowed plugins, with ``NAMES`` added.

    Empty unless torch, and so vLLM, is built for the CPU.
    """
    if not is_for_cpu(distributions()):
        return {}
    found = {b"PYTHONPATH": _joined(environment, b"PYTHONPATH", os.pathsep, str(FOLDER))}
    if _ALLOWED in environment:
        found[_ALLOWED] = _joined(environment, _ALLOWED, ",", ",".join(NAMES))
    return found


def _joined(environment: Mapping[bytes, bytes], name: bytes, separator: str, value: str) -> bytes:
    given = [environment[name]] if environment.get(name) else []
    return os.fsencode(separator).join([*given, os.fsencode(value)])
