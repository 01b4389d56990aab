"""``peagle bench install`` with a Python whose venv and pip give prepared answers; the lock."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from peagle.bench import aiperf
from peagle.bench.aiperf import AIPERF, find_sender, installed_sender
from peagle.data import data_folder
from peagle.errors import EngineError, UserError
from tests.support import Peagle, raises_code

_PYTHON = r"""#!/bin/sh
case "$*" in
  *version_info*) echo 3.12; exit ;;
  *"-m venv"*) step=venv; mkdir -p "$4/bin"; cp "$0" "$4/bin/python"; touch "$4/bin/aiperf" ;;
  *aiperf.txt*) step=packages ;;
  *aiperf.cli*) step=import ;;
esac
echo "$step" >>{folder}/steps
[ ! -f {folder}/$step ] || { cat {folder}/$step; exit 1; }
"""


@pytest.fixture
def python(tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python that notes the steps; a step fails whose file is there."""
    monkeypatch.setattr(aiperf, "NEEDED_BYTES", 0)
    folder = tmp_path / "a python"
    folder.mkdir()
    path = folder / "python"
    path.write_text(_PYTHON.replace("{folder}", shlex.quote(str(folder))))
    path.chmod(0o755)
    return path


def steps(python: Path) -> list[str]:
    return python.with_name("steps").read_text().split()


def test_it_is_installed_once_and_reinstalled_on_request(python: Path, peagle: Peagle) -> None:
    command = ("bench", "install", "--python", str(python))
    first = peagle(*command, "--json")
    assert first.returncode == 0, first.stderr
    again = peagle(*command)
    reinstalled = peagle(*command, "--again")

    document = json.loads(first.stdout)
    assert document["was_installed"] is False
    assert document["version"] == AIPERF
    assert document["program"] == str(find_sender().program)
    assert again.stdout.startswith(f"aiperf {AIPERF} is already installed, ")
    assert reinstalled.stdout.startswith(f"aiperf {AIPERF} is installed in ")
    assert steps(python) == ["venv", "packages", "import"] * 2


def test_a_failed_installation_is_not_used(python: Path, own_home: Path) -> None:
    python.with_name("packages").write_text("ERROR: no matching distribution\n")

    with raises_code("installation-failed", EngineError) as refused:
        aiperf.install_sender(python)
    assert "no matching distribution" in refused.value.message

    assert installed_sender() is None
    python.with_name("packages").unlink()
    aiperf.install_sender(python)
    assert installed_sender()


def test_another_lock_file_needs_another_installation(
    python: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aiperf.install_sender(python)
    monkeypatch.setattr(aiperf, "_digest", lambda: "another")

    assert installed_sender() is None


@pytest.mark.parametrize("marker", ["", "{", "[]", '{"lock": 1}'])
def test_a_damaged_marker_is_no_installation(python: Path, own_home: Path, marker: str) -> None:
    installed = aiperf.install_sender(python)
    (installed.program.parents[1] / "aiperf.json").write_text(marker)

    assert installed_sender() is None


def test_a_full_disk_is_told_first(python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aiperf, "NEEDED_BYTES", 2**60)

    with raises_code("disk-full", UserError):
        aiperf.install_sender(python)


def test_the_lock_has_hashes_no_addresses_and_none_of_the_excluded_packages() -> None:
    folder = data_folder("requirements")
    lock = (folder / "aiperf.txt").read_text()
    excluded = [
        line for line in (folder / "aiperf.excludes").read_text().splitlines() if line[:1] != "#"
    ]
    locked = re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE)

    assert f"aiperf=={AIPERF} " in lock
    assert "://" not in lock
    assert not set(locked) & set(excluded)
    assert lock.count("--hash=sha256:") > len(locked)
