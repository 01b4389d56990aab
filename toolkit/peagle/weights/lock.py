"""One at a time: who copies to a prefix, or removes from it, says so in an object there.

S3 makes the object only where none is (If-None-Match), and changes it only as the holder knows it
(If-Match), so of two who come at the same time one is refused. The holder renews it; one that was
not renewed for a while belongs to nobody any more. Who is killed on this machine leaves a lock
that the next command here need not wait for: the holder keeps a file of this machine locked too.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from peagle.aws.errors import Missing
from peagle.errors import CloudError, PeagleError, Refused
from peagle.store import home, locked
from peagle.text import sanitize
from peagle.weights.bucket import Bucket
from peagle.weights.layout import Place

RENEW_SECONDS = 20.0
STALE_SECONDS = 300.0
"""Without a sign of life for so long, the holder is taken to be dead."""

_ATTEMPTS = 3
_LONGEST = 200
_LOST = ("ConditionalRequestConflict", "NoSuchKey", "PreconditionFailed")
"""What S3 says of a write whose condition does not hold, or no longer."""

_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Holder:
    """Who is at work: the identity that AWS knows, the machine, on what and since when (UTC).
    ``sign`` counts the signs of life, so that no two have the same ETag."""

    id: str
    who: str
    machine: str
    doing: str
    since: str
    sign: str = "0"

    @property
    def words(self) -> str:
        """``arn:... on build-7 copies tiny there since 14:02 UTC``."""
        return f"{self.who} on {self.machine} {self.doing} there since {self.since}"


@dataclass(frozen=True)
class Held:
    """A lock as it lies there; ``age`` is the seconds since its last sign of life, by S3's own
    clock."""

    holder: Holder
    age: float
    etag: str

    @property
    def stale(self) -> bool:
        """Whether nobody holds it any more."""
        return self.age > STALE_SECONDS or _is_dead_here(self.holder.id)

    @property
    def words(self) -> str:
        """Who it is, and when last heard of."""
        return f"{self.holder.words}, last heard of {self.age:.0f} s ago"


def read_lock(bucket: Bucket, place: Place) -> Held | None:
    """The lock, when one lies there."""
    try:
        answer = bucket.call("get_object", Key=place.lock)
    except Missing:
        return None
    with contextlib.closing(answer["Body"]) as body:
        holder = _holder(body.read(10_000))
    said = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    now = parsedate_to_datetime(said) if said else datetime.now(UTC)
    age = max(0.0, (now - answer["LastModified"]).total_seconds())
    return Held(holder, age, answer["ETag"])


class Lock:
    """Ours, as long as ``keep`` does not raise."""

    def __init__(self, bucket: Bucket, place: Place, doing: str,
                 clock: Callable[[], float] = time.monotonic) -> None:  # fmt: skip
        self._bucket, self._place, self._clock = bucket, place, clock
        since = datetime.now(UTC).strftime("%H:%M UTC")
        who = str(bucket.aws.caller["Arn"])
        self.holder = Holder(uuid4().hex, who, socket.gethostname(), doing, since)
        self._etag = ""
        self._renewed = 0.0
        self._signs = 0
        self._begun = False

    def take(self, over: bool = False) -> None:
        """Raise Refused when somebody else has it, unless that is stale, or ``over`` is said."""
        self._begun = True
        for _ in range(_ATTEMPTS):
            if self._put(IfNoneMatch="*"):
                return
            there = read_lock(self._bucket, self._place)
            if there is None:
                continue
            if not (over or there.stale):
                self._begun = False
                raise self._busy(there)
            if self._put(IfMatch=there.etag):
                _file_of(there.holder.id).unlink(missing_ok=True)
                return
        raise Refused(f"others come and go at {self._place.uri}", "repeat the command")

    def keep(self, now: bool = False) -> None:
        """Renew it when that is due, or ``now``. Raises CloudError when it is no longer ours."""
        if not now and self._clock() - self._renewed < RENEW_SECONDS:
            return
        if not self._put(IfMatch=self._etag):
            there = read_lock(self._bucket, self._place)
            other = there.holder.words if there else "nobody has it now"
            raise CloudError(
                f"the lock of {self._place.uri} was taken away meanwhile: {other}",
                "this run has stopped; repeat the command when nobody else is at work",
            )

    def release(self) -> None:
        """Remove it if it is ours. Where S3 cannot be reached it stays, and so does the file by
        which the next command here sees that nobody holds it."""
        with contextlib.suppress(PeagleError):
            there = read_lock(self._bucket, self._place) if self._begun else None
            if there is not None and there.holder.id == self.holder.id:
                self._bucket.delete(self._place.lock)
            _file_of(self.holder.id).unlink(missing_ok=True)

    def _put(self, **condition: str) -> bool:
        """Write it under that condition; whether it is ours then. An answer may have got lost, so
        what was refused may be there all the same."""
        self._signs += 1
        said = asdict(replace(self.holder, sign=str(self._signs)))
        content = json.dumps(said, indent=2).encode()
        try:
            answer = self._bucket.call("put_object", Key=self._place.lock, Body=content,
                                       ContentType="application/json", **condition)  # fmt: skip
            self._etag = answer["ETag"]
        except CloudError as error:
            if error.code not in _LOST:
                raise
            there = read_lock(self._bucket, self._place)
            if there is None or there.holder.id != self.holder.id:
                return False
            self._etag = there.etag
        self._renewed = self._clock()
        return True

    def _busy(self, there: Held) -> Refused:
        minutes = f"{STALE_SECONDS / 60:.0f} minutes"
        return Refused(
            f"somebody else is at work at {self._place.uri}: {there.words}",
            f"wait for it; if it has died, this command takes over {minutes} after its last sign "
            "of life, or at once with --take-over",
        )


@contextmanager
def held(bucket: Bucket, place: Place, doing: str, take_over: bool = False) -> Iterator[Lock]:
    """Have the prefix alone. ``doing`` says to others what (``copies tiny``).

    Raises Refused, naming who is at work, and how to take over.
    """
    lock = Lock(bucket, place, doing)
    with _alive(lock.holder.id):
        try:
            lock.take(take_over)
            yield lock
        finally:
            lock.release()


@contextmanager
def _alive(identity: str) -> Iterator[None]:
    """For as long as this process lives, others here can see that it does."""
    with locked(_file_of(identity)):
        yield


def _is_dead_here(identity: str) -> bool:
    """Whether a process of this machine had that lock, and is gone."""
    path = _file_of(identity)
    try:
        with contextlib.ExitStack() as held:
            if not path.exists():  # a process of another machine
                return False
            held.enter_context(locked(path, wait=False))
    except OSError:  # the process is alive
        return False
    return True


def _file_of(identity: str) -> Path:
    return home() / "weights" / f"{identity}.lock"


def _holder(content: bytes) -> Holder:
    """What is written in the lock; somebody, where that cannot be read."""
    try:
        found: dict[str, Any] = json.loads(content)
        holder = Holder(**{name: sanitize(value, _LONGEST) for name, value in found.items()})
    except (ValueError, TypeError, AttributeError, RecursionError):
        return Holder("", "somebody", "some machine", "works", "some time")
    return holder if _ID.fullmatch(holder.id) else replace(holder, id="")
