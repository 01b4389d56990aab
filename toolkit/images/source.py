"""Which source the toolkit is."""

from __future__ import annotations

import subprocess

from toolkit.data import data_folder


def source_revision() -> str | None:
    """The commit of the toolkit's source, with ``-dirty`` if it is not as committed; ``None`` for
    an installed package."""
    root = data_folder("containers").parent
    if not (root / ".git").exists():
        return None
    asked = [
        "git",
        "-C",
        str(root),
        "describe",
        "--always",
        "--abbrev=40",
        "--dirty",
        "--exclude=*",
    ]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
