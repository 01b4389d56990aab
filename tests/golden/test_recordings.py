"""What a user gets is as recorded; see ``recordings.py`` for how to record it again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden import assert_golden
from tests.golden.recordings import recorders, written


@pytest.mark.thorough
@pytest.mark.parametrize("name", recorders())
def test_it_is_as_recorded(name: str, tmp_path: Path) -> None:
    assert_golden(f"{name}.json", written(name, tmp_path))
