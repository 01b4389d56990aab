"""What a user gets is as recorded; see ``recordings.py`` for how to record it again."""

from pathlib import Path

import pytest

from tests.golden import assert_golden
from tests.golden.recordings import recorders, written


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", [recording for recording in recorders() if recording != "interruptions"]
)
def test_it_is_as_recorded(name: str, tmp_path: Path) -> None:
    assert_golden(f"{name}.json", written(name, tmp_path))


@pytest.mark.exhaustive
def test_what_an_interruption_leaves_is_as_recorded(tmp_path: Path) -> None:
    """Minutes, for half a hundred interruptions."""
    assert_golden("interruptions.json", written("interruptions", tmp_path))
