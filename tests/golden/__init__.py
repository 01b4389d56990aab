"""Rendered output as files: a reviewer sees every flag that changes.

``PEAGLE_UPDATE_GOLDEN=1 pytest`` updates them.
"""

import os
from pathlib import Path

FOLDER = Path(__file__).parent


def assert_golden(name: str, content: bytes) -> None:
    """Compare with ``tests/golden/<name>``, or update it."""
    path = FOLDER / name
    if os.environ.get("PEAGLE_UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert path.is_file(), f"write {path} with PEAGLE_UPDATE_GOLDEN=1"
    assert content.decode() == path.read_text(encoding="utf-8")
