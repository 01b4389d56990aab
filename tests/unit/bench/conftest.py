"""A load generator without packages in place of aiperf."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.bench.installed import install_mini


@pytest.fixture
def sender_home(own_home: Path) -> Path:
    """A home where ``mini_aiperf`` is installed as aiperf."""
    install_mini(own_home)
    return own_home
