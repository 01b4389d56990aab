"""Which test enters which line, in the test process and in the processes that it starts.

``tools/mutants.py`` copies this file into the virtual environment of its scratch tree. There it is
a plugin of pytest, and a ``.pth`` file imports it in every process, whatever its environment is.

PYTEST_DONT_REWRITE: it is imported before pytest."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(sys.prefix).parent.parent / "coverage"
"""Beside the tree in whose ``.venv`` this file lies."""
SETTINGS = FOLDER / "settings"
CURRENT = FOLDER / "current"
"""The test that runs now. There is none when the test process itself starts."""
CHOSEN = FOLDER / "chosen"
"""The tests that a mutant meets, of the files that pytest collects."""


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Keep the chosen tests, where there is a choice."""
    if CHOSEN.exists():
        chosen = set(json.loads(CHOSEN.read_text("utf-8")))
        items[:] = [item for item in items if item.nodeid in chosen]


def pytest_runtest_logstart(nodeid: str) -> None:
    """The lines that are entered from now on belong to this test."""
    import coverage

    measured = coverage.Coverage.current()
    if measured is not None:
        CURRENT.write_text(nodeid, "utf-8")
        measured.switch_context(nodeid)


def measure_child() -> None:
    """Measure this process for the current test. Its environment stays as it is."""
    import coverage

    names = {"COVERAGE_PROCESS_START": str(SETTINGS), "CURRENT_TEST": CURRENT.read_text("utf-8")}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    coverage.process_startup()
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


if CURRENT.exists():
    measure_child()
