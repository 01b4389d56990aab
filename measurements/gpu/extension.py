"""Installs the probe in every vLLM worker.

vLLM imports its ``worker_extension_cls`` in each worker's process, whether forked, spawned or its
own, before it creates the worker's device. Import this module nowhere else: a second import has no
effect.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from measurements.gpu import probe


class Probed:
    """Adds nothing to the worker; importing this module installs the probe."""


if probe.VARIABLE in os.environ:
    _options = json.loads(os.environ[probe.VARIABLE])
    probe.install(Path(_options["stem"]), _options["own"])
