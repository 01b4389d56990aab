"""``peagle.store``: one lock and one atomic write."""

import os
import stat
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from peagle.errors import UserError
from peagle.store import (
    home,
    locked,
    read_json,
    replacing,
    require_free,
    write_file,
    write_json,
)
from tests.support import in_process, raises_code

HOLD = """
import sys, pathlib
from peagle.store import locked
with locked(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def is_free(path: Path) -> bool:
    try:
        with locked(path, wait=False):
            return True
    except BlockingIOError:
        return False


@pytest.mark.thorough
def test_a_lock_excludes_other_processes_and_ends_with_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert not is_free(path)
        holder.kill()
    assert is_free(path)


def test_a_lock_excludes_a_second_one_of_the_same_process(tmp_path: Path) -> None:
    with locked(tmp_path / "lock"):
        assert not is_free(tmp_path / "lock")
    assert is_free(tmp_path / "lock")


def test_a_failed_write_leaves_the_old_file_and_no_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(path, b"old")
    with pytest.raises(UnicodeEncodeError), replacing(path) as temporary:
        temporary.write_text("half \ud800", encoding="utf-8")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_replaced_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(path, b"old")
    path.chmod(0o600)
    write_file(path, b"new")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o600)


def modes(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode)
        for path in (folder, *folder.rglob("*"))
    }


def test_what_is_written_below_the_home_is_for_its_user_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PEAGLE_HOME", str(tmp_path / "home"))
    write_json(tmp_path / "home" / "a" / "b.json", {})
    with locked(tmp_path / "home" / "c" / "lock"):
        pass
    expected = {".": 0o700, "a": 0o700, "a/b.json": 0o600, "c": 0o700, "c/lock": 0o600}
    assert modes(tmp_path / "home") == expected


def test_a_home_that_others_could_read_is_closed_at_its_first_use(own_home: Path) -> None:
    own_home.chmod(0o755)
    write_json(own_home / "new.json", {})
    assert modes(own_home) == {".": 0o700, "new.json": 0o600}


def test_a_file_outside_the_home_gets_the_usual_mode(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    write_file(tmp_path / "file", b"a plan")
    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1


def test_json_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.json"
    assert read_json(path) is None
    write_json(path, {"größe": [1, None]})
    assert read_json(path) == {"größe": [1, None]}


def test_a_user_without_a_home_folder_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_home(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    for variable in ("PEAGLE_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(Path, "expanduser", without_home)
    with raises_code("no-home", UserError):
        home()


def test_doctor_needs_no_home_folder_where_the_state_has_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def without_entry(_: int) -> None:
        raise KeyError

    for variable in ("HOME", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PEAGLE_HOME", str(tmp_path))
    monkeypatch.setattr("pwd.getpwuid", without_entry)
    checks = in_process("doctor", "--json").document["checks"]
    assert {"Home", "AWS credentials"} <= {check["what"] for check in checks}


def test_a_folder_that_is_not_there_yet_needs_the_disk_of_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", {tmp_path: Mock(free=1000)}.__getitem__)
    require_free(tmp_path / "not" / "yet", 1000, "it")
    with raises_code("disk-full"):
        require_free(tmp_path / "not" / "yet", 1001, "it")
