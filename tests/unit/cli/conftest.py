"""What tests of the command line share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.commands import FIRST, Terminal


@pytest.fixture
def terminal(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A user at a terminal, with an empty account and a separate home."""
    return Terminal(monkeypatch)


@pytest.fixture
def deployed(terminal: Terminal) -> Terminal:
    """An account with one endpoint in service."""
    assert terminal.run(*FIRST, "--yes").code == 0
    return terminal
