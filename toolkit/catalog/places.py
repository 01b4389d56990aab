"""Where a catalogue's files lie, and how messages name them."""

from __future__ import annotations

import os
from pathlib import Path

from toolkit.data import data_folder


def folders(own: Path | None) -> list[Path]:
    """The folders that make up the catalogue; a later one counts before an earlier one."""
    bundled = data_folder("model_catalog")
    if own is None or own.resolve() == bundled.resolve():
        return [bundled]
    return [bundled, own]


def evidence_files(own: Path | None) -> list[Path]:
    """The JSON files that may hold evidence."""
    return [path for folder in folders(own) for path in sorted(folder.glob("evidence/*.json"))]


def shown(path: Path) -> str:
    """The path as messages show it: relative to where the user stands, when it lies below."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
