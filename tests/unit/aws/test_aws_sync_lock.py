"""Two at one prefix: the second is told who is first, and takes over from the dead only."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peagle.aws.client import Aws
from peagle.errors import CloudError, Refused
from peagle.weights.bucket import Bucket
from peagle.weights.inspect import inspect_weights as look_at
from peagle.weights.inspect import remove_weights as remove
from peagle.weights.lock import RENEW_SECONDS, Lock, hold_lock, read_lock
from peagle.weights.sync import sync_weights as sync
from tests.unit.aws.syncing import (
    COPIED,
    PLACE,
    Calls,
    bring,
    folder_weights,
    keys,
    look,
    manifest,
    stored,
    write_model,
)

LOCKING = "peagle.weights.lock"


@pytest.fixture
def bucket(aws: Aws) -> Bucket:
    return Bucket(aws, "models")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_model(tmp_path / "target")


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Call it, and what follows happens on another machine."""
    return lambda: monkeypatch.setenv("PEAGLE_HOME", str(tmp_path / "elsewhere"))


def test_the_second_is_told_who_is_at_work_and_changes_nothing(
    aws: Aws, bucket: Bucket, target: Path, elsewhere: Any
) -> None:
    with hold_lock(bucket, PLACE, "copies acme/chat"):
        elsewhere()
        before = keys(aws)
        with pytest.raises(Refused, match=r"models/pair/: arn:aws:.* copies acme/chat") as busy:
            bring(aws, target=folder_weights(target))
        assert keys(aws) == before == {PLACE.lock_key}
    assert re.search(r"last active \d s ago", busy.value.message)
    assert "takes over 5 minutes after" in busy.value.fix
    assert "--take-over" in busy.value.fix


def test_afterwards_the_prefix_is_free_and_no_lock_lies_in_it(
    aws: Aws, target: Path, own_home: Path
) -> None:
    bring(aws, target=folder_weights(target))

    assert PLACE.lock_key not in keys(aws)
    assert list((own_home / "weights").iterdir()) == []
    assert look(aws, target=folder_weights(target)).findings == ()


def test_of_two_who_come_at_the_same_time_one_gets_it(aws: Aws, bucket: Bucket) -> None:
    start, got = threading.Barrier(4), []

    def come() -> None:
        lock = Lock(bucket, PLACE, "copies")
        start.wait()
        try:
            lock.take()
        except Refused:
            return
        got.append(lock.holder.id)

    comers = [threading.Thread(target=come) for _ in range(4)]
    for comer in comers:
        comer.start()
    for comer in comers:
        comer.join()

    there = read_lock(bucket, PLACE)
    assert there is not None
    assert got == [there.holder.id]


def test_the_dead_of_another_machine_are_waited_for_until_they_are_stale(
    aws: Aws, bucket: Bucket, target: Path, elsewhere: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    Lock(bucket, PLACE, "copied").take()
    elsewhere()
    with pytest.raises(Refused):
        bring(aws, target=folder_weights(target))

    monkeypatch.setattr(f"{LOCKING}.STALE_SECONDS", -1.0)
    bring(aws, target=folder_weights(target))

    assert manifest(aws)["folders"]["target"]["complete"] is True
    assert PLACE.lock_key not in keys(aws)


def test_take_over_does_not_wait(aws: Aws, bucket: Bucket, target: Path, elsewhere: Any) -> None:
    Lock(bucket, PLACE, "copied").take()
    elsewhere()

    sync(aws, look(aws, target=folder_weights(target)), COPIED, lambda moment: None, take_over=True)

    assert manifest(aws)["folders"]["target"]["complete"] is True


def test_the_killed_of_this_machine_are_not_waited_for(
    aws: Aws, bucket: Bucket, target: Path, own_home: Path
) -> None:
    with hold_lock(bucket, PLACE, "copies"):
        left = stored(aws, PLACE.lock_key)
        (file,) = (own_home / "weights").iterdir()
    # A killed process leaves both: the object, and a file that nobody holds any more.
    aws.call("s3", "put_object", Bucket="models", Key=PLACE.lock_key, Body=left)
    file.touch()

    bring(aws, target=folder_weights(target))

    assert manifest(aws)["folders"]["target"]["complete"] is True
    assert not file.exists()


def test_who_was_taken_over_from_stops_and_leaves_the_others_lock(
    aws: Aws, bucket: Bucket, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A laptop that slept for an hour."""
    monkeypatch.setattr(f"{LOCKING}.RENEW_SECONDS", 0.0)
    other = Lock(bucket, PLACE, "copies something else")

    def taken(operation: str, given: dict[str, Any]) -> None:
        if operation == "put_object" and given["Key"] == "pair/target/config.json":
            calls.before = lambda operation, given: None
            other.take(over=True)

    calls = Calls(aws, monkeypatch)
    calls.before = taken

    with pytest.raises(CloudError, match="copies something else") as lost:
        bring(aws, target=folder_weights(target))

    assert "was taken over" in lost.value.message
    assert manifest(aws)["folders"]["target"]["complete"] is False
    there = read_lock(bucket, PLACE)
    assert there is not None
    assert there.holder.id == other.holder.id


def test_it_is_renewed_when_that_is_due_and_then_only(
    aws: Aws, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, seconds = Calls(aws, monkeypatch), [0.0]
    lock = Lock(bucket, PLACE, "copies", clock=lambda: seconds[0])
    lock.take()
    for now, renewals in ((RENEW_SECONDS - 1, 0), (RENEW_SECONDS + 1, 1), (RENEW_SECONDS + 2, 1)):
        seconds[0] = now
        lock.keep()
        assert calls.count("put_object") == 1 + renewals

    aws.call("s3", "delete_object", Bucket="models", Key=PLACE.lock_key)
    with pytest.raises(CloudError, match="it was removed"):
        lock.keep(now=True)


def test_who_gave_a_sign_of_life_meanwhile_is_not_taken_over_from(
    aws: Aws, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, elsewhere: Any
) -> None:
    """It looked dead, and woke up before its lock was changed."""
    first, second = (Lock(bucket, PLACE, doing) for doing in ("copies", "copies too"))
    first.take()
    elsewhere()
    calls = Calls(aws, monkeypatch)

    def wake(operation: str, given: dict[str, Any]) -> None:
        if operation == "put_object" and "IfMatch" in given:
            calls.before = lambda operation, given: None
            monkeypatch.setattr(f"{LOCKING}.STALE_SECONDS", 300.0)
            first.keep(now=True)

    calls.before = wake
    monkeypatch.setattr(f"{LOCKING}.STALE_SECONDS", -1.0)

    with pytest.raises(Refused):
        second.take()
    first.keep(now=True)


def test_an_answer_that_got_lost_is_no_second_holder(
    aws: Aws, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 has made the lock, nobody heard of it, and the repeated call is refused."""
    original = bucket.call

    def twice(operation: str, **given: Any) -> dict[str, Any]:
        if operation == "put_object":
            original(operation, **given)
        return original(operation, **given)

    monkeypatch.setattr(bucket, "call", twice)
    lock = Lock(bucket, PLACE, "copies")

    lock.take()
    lock.keep(now=True)
    lock.release()

    assert keys(aws) == set()


def test_two_who_copy_one_half_each_one_after_the_other_both_stay_in_the_manifest(
    aws: Aws, target: Path, tmp_path: Path
) -> None:
    """The second has looked before the first had ended."""
    drafter = write_model(tmp_path / "drafter", seed=1)
    second = look(aws, drafter=folder_weights(drafter))
    bring(aws, target=folder_weights(target))

    sync(aws, second, COPIED, lambda moment: None)

    folders = manifest(aws)["folders"]
    assert {part: folder["complete"] for part, folder in folders.items()} == {
        "target": True, "drafter": True
    }  # fmt: skip


def test_nobody_removes_what_is_being_copied(
    aws: Aws, bucket: Bucket, target: Path, elsewhere: Any
) -> None:
    bring(aws, target=folder_weights(target))
    with hold_lock(bucket, PLACE, "copies acme/chat"):
        elsewhere()
        found = look_at(aws, PLACE)
        with pytest.raises(Refused, match="copies acme/chat"):
            remove(aws, found)

        assert found.lock is not None
        assert not found.lock.stale
        assert found.others == {}
        assert "pair/target/config.json" in keys(aws)
    remove(aws, found)
    assert keys(aws) == set()


@pytest.mark.parametrize(
    "content",
    [b"", b"nonsense", b"[1]", b'{"id": "../../x"}', b'{"who": 1}'],
    ids=["empty", "no json", "a list", "half", "other keys"],
)
def test_a_lock_that_nobody_can_read_counts_all_the_same(
    aws: Aws, bucket: Bucket, target: Path, content: bytes
) -> None:
    aws.call("s3", "put_object", Bucket="models", Key=PLACE.lock_key, Body=content)

    with pytest.raises(Refused, match="someone else works"):
        bring(aws, target=folder_weights(target))


def test_what_others_have_written_cannot_steer_the_terminal(aws: Aws, bucket: Bucket) -> None:
    lock = Lock(bucket, PLACE, "copies")
    nasty = replace(lock.holder, who="\x1b[2Jevil\r\n", id="../../../etc/passwd")
    body = json.dumps(nasty.__dict__).encode()
    aws.call("s3", "put_object", Bucket="models", Key=PLACE.lock_key, Body=body)

    there = read_lock(bucket, PLACE)

    assert there is not None
    assert there.holder.who == "[2Jevil"
    assert there.holder.id == ""
    assert not there.stale


def test_the_lock_file_goes_with_the_process_that_was_killed(tmp_path: Path) -> None:
    """The kernel lets go of it, whatever ended the process."""
    code = (
        f"import sys, time; from {LOCKING} import _local_file, locked\n"
        "with locked(_local_file('a' * 32)):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(60)\n"
    )
    environment = {**os.environ, "PEAGLE_HOME": str(tmp_path)}
    script = f"from {LOCKING} import _crashed_here; print(_crashed_here('a' * 32))"

    def dead() -> str:
        done = subprocess.run([sys.executable, "-c", script], env=environment, check=True,
                              capture_output=True, text=True)  # fmt: skip
        return done.stdout.strip()

    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE,
                          text=True) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert dead() == "False"
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    assert dead() == "True"
