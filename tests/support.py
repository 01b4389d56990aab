"""Types that tests share."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

Peagle = Callable[..., subprocess.CompletedProcess[str]]
"""Runs ``peagle`` as a process with these arguments; keywords go to ``subprocess.run``."""
