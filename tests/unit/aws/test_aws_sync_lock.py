"""One writer per prefix: others are refused, and stale locks are taken over."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from peagle.aws.client import Aws
from peagle.errors import CloudError, Refused
from peagle.weights.bucket import RENEW_SECONDS, Bucket, Lock, hold_lock, read_lock
from peagle.weights.inspect import inspect_weights, remove_weights
from tests.support import raises_code
from tests.unit.aws.syncing import (
    PLACE,
    Calls,
    apply,
    folder_weights,
    keys,
    manifest,
    plan_for,
    sync,
    write_model,
)

LOCKING = "peagle.weights.bucket"


@pytest.fixture
def bucket(aws: Aws) -> Bucket:
    return Bucket(aws, "models")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_model(tmp_path / "target")


def test_the_second_writer_is_refused_with_the_holders_name(
    aws: Aws, bucket: Bucket, target: Path
) -> None:
    with hold_lock(bucket, PLACE, "copies acme/chat"):
        before = keys(aws)
        with raises_code("locked", Refused) as busy:
            sync(aws, target=folder_weights(target))
        assert "copies acme/chat" in busy.value.message
        assert keys(aws) == before == {PLACE.lock_key}
    assert re.search(r"last active \d s ago", busy.value.message)
    assert "takes over 5 minutes after" in busy.value.fix
    assert "--take-over" in busy.value.fix


@pytest.mark.thorough
def test_afterwards_no_lock_is_left(aws: Aws, target: Path) -> None:
    sync(aws, target=folder_weights(target))

    assert PLACE.lock_key not in keys(aws)
    assert plan_for(aws, target=folder_weights(target)).findings == ()


def test_one_of_two_concurrent_writers_gets_the_lock(
    aws: Aws, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, got = threading.Barrier(4), []
    one_at_a_time, call = threading.Lock(), aws.call

    def atomic(service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        with one_at_a_time:  # a conditional write is atomic in S3, not in moto
            return call(service, operation, **parameters)

    monkeypatch.setattr(aws, "call", atomic)

    def take_lock() -> None:
        lock = Lock(bucket, PLACE, "copies")
        start.wait()
        try:
            lock.acquire()
        except Refused:
            return
        got.append(lock.id)

    threads = [threading.Thread(target=take_lock) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    there = read_lock(bucket, PLACE)
    assert got == [there.id]


@pytest.mark.thorough
def test_a_lock_of_another_machine_holds_until_it_is_stale(
    aws: Aws, bucket: Bucket, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Lock(bucket, PLACE, "copied").acquire()
    with pytest.raises(Refused):
        sync(aws, target=folder_weights(target))

    monkeypatch.setattr(f"{LOCKING}.STALE_SECONDS", -1.0)
    sync(aws, target=folder_weights(target))

    assert manifest(aws)["folders"]["target"]["complete"] is True
    assert PLACE.lock_key not in keys(aws)


@pytest.mark.thorough
def test_take_over_does_not_wait(aws: Aws, bucket: Bucket, target: Path) -> None:
    Lock(bucket, PLACE, "copied").acquire()

    apply(aws, plan_for(aws, target=folder_weights(target)), take_over=True)

    assert manifest(aws)["folders"]["target"]["complete"] is True


@pytest.mark.thorough
def test_a_holder_that_lost_the_lock_stops_and_leaves_the_new_one(
    aws: Aws, bucket: Bucket, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A laptop that slept for an hour."""
    monkeypatch.setattr(f"{LOCKING}.RENEW_SECONDS", 0.0)
    other = Lock(bucket, PLACE, "copies something else")

    def take_over(operation: str, parameters: dict[str, Any]) -> None:
        if operation == "put_object" and parameters["Key"] == "pair/target/config.json":
            calls.before = lambda operation, parameters: None
            other.acquire(take_over=True)

    calls = Calls(aws)
    calls.before = take_over

    with raises_code("lock-lost", CloudError) as lost:
        sync(aws, target=folder_weights(target))

    assert "copies something else" in lost.value.message
    assert "was taken over" in lost.value.message
    assert manifest(aws)["folders"]["target"]["complete"] is False
    there = read_lock(bucket, PLACE)
    assert there.id == other.id


def test_the_lock_is_renewed_only_when_due(
    aws: Aws, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, seconds = Calls(aws), [0.0]
    monkeypatch.setattr(f"{LOCKING}.time.monotonic", lambda: seconds[0])
    lock = Lock(bucket, PLACE, "copies")
    lock.acquire()
    for now, renewals in ((RENEW_SECONDS - 1, 0), (RENEW_SECONDS + 1, 1), (RENEW_SECONDS + 2, 1)):
        seconds[0] = now
        lock.renew()
        assert calls.count("put_object") == 1 + renewals

    aws.call("s3", "delete_object", Bucket="models", Key=PLACE.lock_key)
    with raises_code("lock-lost", CloudError):
        lock.renew(now=True)


def test_a_holder_that_renewed_meanwhile_keeps_the_lock(
    aws: Aws, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock was stale, and is renewed before the other replaces it."""
    first, second = (Lock(bucket, PLACE, doing) for doing in ("copies", "copies too"))
    first.acquire()
    calls = Calls(aws)

    def wake(operation: str, parameters: dict[str, Any]) -> None:
        if operation == "put_object" and "IfMatch" in parameters:
            calls.before = lambda operation, parameters: None
            monkeypatch.setattr(f"{LOCKING}.STALE_SECONDS", 300.0)
            first.renew(now=True)

    calls.before = wake
    monkeypatch.setattr(f"{LOCKING}.STALE_SECONDS", -1.0)

    with pytest.raises(Refused):
        second.acquire()
    first.renew(now=True)


def test_a_lost_response_does_not_count_as_another_holder(
    aws: Aws, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 has created the lock, the response is lost, and the repeated call is refused."""
    original = bucket.call

    def twice(operation: str, **given: Any) -> dict[str, Any]:
        if operation == "put_object":
            original(operation, **given)
        return original(operation, **given)

    monkeypatch.setattr(bucket, "call", twice)
    lock = Lock(bucket, PLACE, "copies")

    lock.acquire()
    lock.renew(now=True)
    lock.release()

    assert keys(aws) == set()


@pytest.mark.thorough
def test_parts_synced_separately_both_stay_in_the_manifest(
    aws: Aws, target: Path, tmp_path: Path
) -> None:
    """The second sync was planned before the first ended."""
    drafter = write_model(tmp_path / "drafter", seed=1)
    second = plan_for(aws, drafter=folder_weights(drafter))
    sync(aws, target=folder_weights(target))

    apply(aws, second)

    folders = manifest(aws)["folders"]
    assert {part: folder["complete"] for part, folder in folders.items()} == {
        "target": True, "drafter": True
    }  # fmt: skip


@pytest.mark.thorough
def test_weights_that_are_being_copied_cannot_be_removed(
    aws: Aws, bucket: Bucket, target: Path
) -> None:
    sync(aws, target=folder_weights(target))
    with hold_lock(bucket, PLACE, "copies acme/chat"):
        found = inspect_weights(aws, PLACE)
        with raises_code("locked", Refused):
            remove_weights(aws, found)

        assert found.lock is not None
        assert not found.lock.stale
        assert found.others == {}
        assert "pair/target/config.json" in keys(aws)
    remove_weights(aws, found)
    assert keys(aws) == set()


@pytest.mark.parametrize("content", [b"", b"nonsense", b"[1]", b'{"id": "../../x"}'])
def test_an_unreadable_lock_counts(aws: Aws, bucket: Bucket, target: Path, content: bytes) -> None:
    aws.call("s3", "put_object", Bucket="models", Key=PLACE.lock_key, Body=content)

    with raises_code("locked", Refused):
        sync(aws, target=folder_weights(target))


def test_control_characters_in_a_lock_are_removed(aws: Aws, bucket: Bucket) -> None:
    hostile = {"id": "../../../etc/passwd", "holder": "\x1b[2Jevil\r\n"}
    body = json.dumps(hostile).encode()
    aws.call("s3", "put_object", Bucket="models", Key=PLACE.lock_key, Body=body)

    lock = read_lock(bucket, PLACE)

    assert (lock.holder, lock.id, lock.stale) == ("[2Jevil", "", False)
