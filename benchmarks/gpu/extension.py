"""Brings the probe into every worker: vLLM imports its ``worker_extension_cls`` in each worker's
process, forked or spawned, before the worker's device is made."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from benchmarks.gpu import probe

VARIABLE = "PEAGLE_GPU_PROBE"
"""Environment variable with the stem of the probe's files and the tensors that a head keeps."""


class Probed:
    """Nothing is added to the worker; that this module is imported is what counts."""


def announce(stem: Path, own: tuple[str, ...]) -> dict[str, Any]:
    """Says in the environment what is to be noted; returns the engine argument that does it."""
    os.environ[VARIABLE] = json.dumps({"stem": str(stem.resolve()), "own": own})
    return {"worker_extension_cls": f"{Probed.__module__}.{Probed.__qualname__}"}


if VARIABLE in os.environ:
    _said = json.loads(os.environ[VARIABLE])
    probe.install(Path(_said["stem"]), _said["own"])
