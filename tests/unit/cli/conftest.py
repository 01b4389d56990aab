"""What tests of the command line share."""

import pytest

from tests.unit.aws.conftest import plain_writes
from tests.unit.cli.commands import FIRST, Terminal

__all__ = ["plain_writes"]


@pytest.fixture
def terminal(plain_writes: None, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A user at a terminal, with an empty account and a separate home."""
    return Terminal(monkeypatch)


@pytest.fixture
def deployed(terminal: Terminal) -> Terminal:
    """An account with one endpoint in service."""
    assert terminal.run(*FIRST, "--yes").code == 0
    return terminal
