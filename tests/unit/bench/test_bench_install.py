"""``peagle bench install`` with a Python whose venv and pip give prepared answers; the lock."""

import json
from pathlib import Path

import pytest

from peagle.bench import load
from peagle.bench.load import AIPERF, find_sender, sender_installation
from peagle.engine.machine import MARKER
from tests.support import Peagle
from tests.wheels import write_wheel


@pytest.fixture
def lock(tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lock file of a small aiperf, which uv finds in a folder."""
    monkeypatch.setattr(load, "NEEDED_BYTES", 0)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    files = {
        "aiperf/__init__.py": "", "aiperf/cli.py": "",
        f"aiperf-{AIPERF}.data/scripts/aiperf": "#!python\n",
    }  # fmt: skip
    lock = tmp_path / "aiperf.txt"
    lock.write_text(write_wheel(tmp_path, "aiperf", AIPERF, files))
    monkeypatch.setattr(load, "data_folder", lambda name: tmp_path)
    return lock


@pytest.mark.thorough
def test_it_is_installed_once_and_reinstalled_on_request(lock: Path, peagle: Peagle) -> None:
    first = peagle("bench", "install", "--json")
    assert first.returncode == 0, first.stderr
    again = json.loads(peagle("bench", "install", "--json").stdout)
    reinstalled = json.loads(peagle("bench", "install", "--again", "--json").stdout)
    document = json.loads(first.stdout)
    assert document["was_installed"] is False
    assert document["version"] == AIPERF
    assert document["program"] == str(find_sender().program)
    assert (again["was_installed"], reinstalled["was_installed"]) == (True, False)


def test_a_damaged_marker_is_no_installation(lock: Path) -> None:
    installation = sender_installation()
    installation.install(None, print)
    assert installation.is_complete()
    for marker in ("", "{", "[]", '{"lock": 1}', '{"lock": "another"}'):
        (installation.folder / MARKER).write_text(marker)
        assert not installation.is_complete()
