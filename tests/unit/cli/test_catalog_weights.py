"""``peagle catalog check`` reads the weights that lie beside a catalogue's files."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from peagle.cli.main import cli
from tests.unit.checks.damage import tiny


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A catalogue with one target of its own, whose file says another width than its weights."""
    text = (tiny("target").parents[1] / "tiny.yaml").read_text()
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "tiny").symlink_to(tiny("target").parent)
    text = text.replace("id: peagle/tiny", "id: acme/mine").replace(
        "short_name: tiny", "short_name: mine"
    )
    (tmp_path / "acme" / "mine.yaml").write_text(
        text.replace("hidden_size: 256", "hidden_size: 512")
    )
    return tmp_path


@pytest.mark.parametrize("place", ["", "acme/mine.yaml"])
def test_a_file_that_contradicts_its_own_weights_is_wrong(own: Path, place: str) -> None:
    done = CliRunner().invoke(cli, ["catalog", "check", str(own / place)])
    assert done.exit_code == 2
    assert "hidden size 256, not 512" in done.stdout
    assert "correct the catalogue file" in done.stdout


def test_weights_that_are_not_there_are_wrong(own: Path) -> None:
    (own / "acme" / "tiny").unlink()
    done = CliRunner().invoke(cli, ["--catalog", str(own), "catalog", "check"])
    assert done.exit_code == 2
    assert "there is no folder" in done.stdout
