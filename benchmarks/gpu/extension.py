"""Brings the probe into every worker: vLLM imports its ``worker_extension_cls`` in each worker's
process, forked or spawned or its own, before the worker's device is made. Nobody else may import
it: what is imported already is not imported again."""

from __future__ import annotations

import json
import os
from pathlib import Path

from benchmarks.gpu import probe


class Probed:
    """Nothing is added to the worker; that this module is imported is what counts."""


if probe.VARIABLE in os.environ:
    _said = json.loads(os.environ[probe.VARIABLE])
    probe.install(Path(_said["stem"]), _said["own"])
