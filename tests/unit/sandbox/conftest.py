"""What tests of the sandbox share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.sandbox.sandboxes import Account, Sandbox


@pytest.fixture
def home(tmp_path: Path, engine: Path) -> Iterator[Sandbox]:
    """A home without a running sandbox; nothing of it is left running afterwards."""
    sandbox = Sandbox(tmp_path, engine)
    yield sandbox
    if sandbox.processes():
        sandbox.peagle("sandbox", "stop")
    assert sandbox.processes() == []


@pytest.fixture
def live(account: Account) -> Iterator[str]:
    """An endpoint in service."""
    name = account.endpoint()
    assert account.settled(name)["EndpointStatus"] == "InService"
    yield name
    account.gone(name)
