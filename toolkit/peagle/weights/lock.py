"""The lock of a prefix in S3, which one writer at a time holds.

S3 creates the lock object only where there is none (If-None-Match) and replaces it only in the
state that the holder knows (If-Match), so of two simultaneous writers one is rejected. The holder
renews the object; a lock without a recent renewal is stale. The holder also locks a file on its
machine, so the next command on the same machine need not wait after a crash.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from uuid import uuid4

from peagle.aws.client import translated
from peagle.aws.errors import Missing
from peagle.errors import CloudError, PeagleError, Refused, parsing
from peagle.store import home, locked
from peagle.text import sanitize
from peagle.weights.bucket import Bucket
from peagle.weights.layout import WeightsPrefix
from peagle_serve import json_reader
from peagle_serve.contract import HEX_32

RENEW_SECONDS = 20.0

STALE_SECONDS = 300.0
"""A lock that was not renewed for this long is stale."""

_ATTEMPTS = 3

_MAX_TEXT = 200

_CONDITION_FAILED = ("ConditionalRequestConflict", "NoSuchKey", "PreconditionFailed")
"""S3's error codes for a write whose condition does not hold."""


@dataclass(frozen=True)
class LockHolder:
    """The AWS identity and machine that hold the lock, the operation, and its start (UTC).

    ``sign`` counts the renewals, so that no two of them have the same ETag.
    """

    id: str
    who: str
    machine: str
    doing: str
    since: str
    sign: str = "0"

    @classmethod
    def parse(cls, content: bytes) -> LockHolder:
        """The holder that a lock object names; an anonymous one where it cannot be read."""
        try:
            fields = json_reader.read(content, "the lock").items()
            holder = cls(**{name: sanitize(value, _MAX_TEXT) for name, value in fields})
        except (ValueError, TypeError, AttributeError):
            return cls(
                "", "an unknown user", "an unknown machine", "holds the lock", "an unknown time"
            )
        return holder if HEX_32.fullmatch(holder.id) else replace(holder, id="")

    def __str__(self) -> str:
        """``arn:... on build-7 copies tiny since 14:02 UTC``."""
        return f"{self.who} on {self.machine} {self.doing} since {self.since}"


@dataclass(frozen=True)
class LockState:
    """A lock object in S3. ``age``: seconds since its last renewal, by S3's own clock."""

    holder: LockHolder
    age: float
    etag: str

    @property
    def stale(self) -> bool:
        """Whether the holder is gone."""
        return self.age > STALE_SECONDS or _crashed_here(self.holder.id)

    def __str__(self) -> str:
        """The holder, and when it last renewed the lock."""
        return f"{self.holder}, last active {self.age:.0f} s ago"


def read_lock(bucket: Bucket, prefix: WeightsPrefix) -> LockState | None:
    """The lock of a prefix; ``None`` where there is none."""
    try:
        answer = bucket.call("get_object", Key=prefix.lock_key)
    except Missing:
        return None
    with closing(answer["Body"]) as body, translated("s3", bucket.aws.region):
        holder = LockHolder.parse(body.read(10_000))
    with parsing("S3's answer about the lock", CloudError):
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        now = parsedate_to_datetime(date) if date else datetime.now(UTC)
        age = max(0.0, (now - answer["LastModified"]).total_seconds())
        return LockState(holder, age, answer["ETag"])


class Lock:
    """A lock, held between ``acquire`` and ``release`` unless ``renew`` raises."""

    def __init__(self, bucket: Bucket, prefix: WeightsPrefix, doing: str,
                 clock: Callable[[], float] = time.monotonic) -> None:  # fmt: skip
        self._bucket, self._prefix, self._clock = bucket, prefix, clock
        since = datetime.now(UTC).strftime("%H:%M UTC")
        who = str(bucket.aws.caller["Arn"])
        self.holder = LockHolder(uuid4().hex, who, socket.gethostname(), doing, since)
        self._etag = ""
        self._renewed = 0.0
        self._renewals = 0
        self._requested = False

    def acquire(self, over: bool = False) -> None:
        """Raises Refused when someone else holds the lock, unless it is stale or ``over``."""
        self._requested = True
        for _ in range(_ATTEMPTS):
            if self._put(IfNoneMatch="*"):
                return
            current = read_lock(self._bucket, self._prefix)
            if current is None:
                continue
            if not (over or current.stale):
                self._requested = False
                raise Refused(
                    f"another command holds the lock of {self._prefix.uri}: {current}",
                    "wait until it has finished; if it crashed, this command takes over "
                    f"{STALE_SECONDS / 60:.0f} minutes after its last activity, or at once with "
                    "--take-over",
                    code="locked",
                )
            if self._put(IfMatch=current.etag):
                _local_file(current.holder.id).unlink(missing_ok=True)
                return
        raise Refused(
            f"other commands keep taking the lock of {self._prefix.uri}", "run the command again",
            code="locked",
        )  # fmt: skip

    def renew(self, now: bool = False) -> None:
        """Renew the lock when that is due, or ``now``. Raises CloudError when it is lost."""
        if not now and self._clock() - self._renewed < RENEW_SECONDS:
            return
        if not self._put(IfMatch=self._etag):
            current = read_lock(self._bucket, self._prefix)
            holder = current.holder if current else "it was removed"
            raise CloudError(
                f"the lock of {self._prefix.uri} was taken over: {holder}",
                "this command has stopped; run it again when the lock is free",
                code="lock-lost",
            )

    def release(self) -> None:
        """Remove the lock if it is ours. Where S3 cannot be reached the object stays, and so does
        the local file by which the next command here recognizes it as stale."""
        with contextlib.suppress(PeagleError):
            current = read_lock(self._bucket, self._prefix) if self._requested else None
            if current is not None and current.holder.id == self.holder.id:
                self._bucket.delete(self._prefix.lock_key)
            _local_file(self.holder.id).unlink(missing_ok=True)

    def _put(self, **condition: str) -> bool:
        """Write the lock under a condition; whether it is ours now. A lost response may hide a
        write that succeeded, so after a failed condition the object is read."""
        self._renewals += 1
        content = json.dumps(asdict(replace(self.holder, sign=str(self._renewals))), indent=2)
        try:
            answer = self._bucket.call("put_object", Key=self._prefix.lock_key,
                                       Body=content.encode(), ContentType="application/json",
                                       **condition)  # fmt: skip
            self._etag = answer["ETag"]
        except CloudError as error:
            if error.code not in _CONDITION_FAILED:
                raise
            current = read_lock(self._bucket, self._prefix)
            if current is None or current.holder.id != self.holder.id:
                return False
            self._etag = current.etag
        self._renewed = self._clock()
        return True


@contextmanager
def hold_lock(
    bucket: Bucket, prefix: WeightsPrefix, doing: str, take_over: bool = False
) -> Iterator[Lock]:
    """Hold the lock of the prefix. ``doing`` tells others what (``copies tiny``).

    Raises Refused with the name of the current holder.
    """
    lock = Lock(bucket, prefix, doing)
    with locked(_local_file(lock.holder.id)):
        try:
            lock.acquire(take_over)
            yield lock
        finally:
            lock.release()


def _crashed_here(identity: str) -> bool:
    """Whether a process of this machine held that lock and no longer exists."""
    file = _local_file(identity)
    if not file.is_file():  # of another machine
        return False
    try:
        with locked(file, wait=False):
            return True
    except OSError:  # the process still runs
        return False


def _local_file(identity: str) -> Path:
    return home() / "weights" / f"{identity}.lock"
