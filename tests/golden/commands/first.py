"""The first recording of all command lines, from before the import package was ``peagle``.

``first.json`` is never recorded again: what users had then still works, or stands in
``first_changes.json`` with the reason. It has no values, since many follow the catalogue and its
measurements; those of each line are compared with the present recording.
"""

from typing import Any

from tests.golden.commands import FOLDER, outline, recorded
from tests.golden.commands.outline import Outline

FIRST: dict[str, Any] = recorded(FOLDER / "first.json")
"""``interface`` as in ``interface.json``; the other keys as in ``runs.json``."""
CHANGES: dict[str, dict[str, Any]] = recorded(FOLDER / "first_changes.json")
"""Command line -> the ``losses`` since the first recording, and the ``reason`` for them."""


def unexpected(kind: str, line: str, now: Outline) -> list[str]:
    """What differs from ``CHANGES``: losses since the first recording of a line of ``kind``
    (``commands`` or ``sandbox``) that are not listed, and listed ones that are none. Empty for a
    line that the first recording does not have."""
    if line not in FIRST[kind]:
        return []
    listed = CHANGES[line]["losses"] if line in CHANGES else []
    return sorted({*outline.losses_since(FIRST, kind, line, now)} ^ {*listed})
