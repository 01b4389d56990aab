"""How far a copy is, how fast, and how long it still takes.

Threads that end with the program: a second Ctrl-C waits for none of them.

One file on its way. A run is opened, does its parts in other threads, and is closed.

``work`` runs in a worker's thread; ``open`` and ``take`` run in one thread, ``take`` in the order
of the parts. ``close`` comes last and may hand back another run, which the file needs still.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

from peagle.errors import CloudError
from peagle.weights.bucket import Bucket, Head
from peagle.weights.sources import Part, combined, part_bytes, parts_of, sha256
from peagle.weights.sync_plan import Item

_WINDOW_SECONDS = 15.0
"""Speed is that of the last seconds, so that time left follows the network."""

_SETTLED_SECONDS = 2.0
"""Before that, nobody can tell how long it takes."""


@dataclass(frozen=True)
class Moment:
    """Bytes that are in place of ``total``, those that this run moved, bytes per second, seconds
    left (``None`` while nobody can tell), and the file in hand."""

    done: int
    total: int
    moved: int
    speed: float
    seconds_left: float | None
    file: str


class Meter:
    """Counts bytes; what was there already counts as done, but not as speed."""

    def __init__(
        self,
        total: int,
        tell: Callable[[Moment], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total, self._tell, self._clock = total, tell, clock
        self._done = self._moved = 0
        self._expected: dict[str, int] = {}
        self._file = ""
        self._begin = clock()
        self._marks: deque[tuple[float, int]] = deque([(self._begin, 0)])

    @property
    def done(self) -> int:
        """Bytes in place, those of earlier runs included that are still to be compared."""
        return min(self._total, self._done + sum(self._expected.values()))

    @property
    def moved(self) -> int:
        """Bytes that this run moved."""
        return self._moved

    def expect(self, file: str, count: int) -> None:
        """An earlier run left so many bytes of ``file`` there."""
        self._expected[file] = count

    def settled(self, file: str) -> None:
        """Nothing more is expected of ``file``."""
        self._expected.pop(file, None)

    def advance(self, file: str, count: int, moved: bool) -> None:
        """``count`` bytes of ``file`` are in place, ``moved`` just now or there already."""
        self._file = file
        self._done += count
        if not moved and file in self._expected:
            self._expected[file] = max(0, self._expected[file] - count)
        self._moved += count if moved else 0
        self._marks.append((self._clock(), self._moved))
        self.tick()

    def withdraw(self, count: int) -> None:
        """What counted as in place has turned out not to be."""
        self._done -= count

    def tick(self) -> None:
        """Tell how it stands now."""
        now = self._clock()
        while len(self._marks) > 2 and now - self._marks[1][0] > _WINDOW_SECONDS:
            self._marks.popleft()
        since, before = self._marks[0]
        speed = (self._moved - before) / (now - since) if now > since else 0.0
        settled = speed > 0 and now - self._begin >= _SETTLED_SECONDS
        left = (self._total - self.done) / speed if settled else None
        self._tell(Moment(self.done, self._total, self._moved, speed, left, self._file))


WORKERS = 8
"""boto3 keeps ten connections."""

PATIENCE_SECONDS = 10.0
"""What is under way when a run ends early may come to its end, if it does so soon."""

T = TypeVar("T")
_Call = tuple[Future[Any], Callable[[], Any]]


class Workers:
    """Does calls in their order, some at a time."""

    def __init__(self, count: int = WORKERS) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """The call's result, some time."""
        future: Future[T] = Future()
        self._calls.put((future, call))
        return future

    def end(self, patience: float = PATIENCE_SECONDS) -> None:
        """Begin no other call, and wait a while for those that have begun."""
        while True:
            try:
                self._calls.get_nowait()
            except Empty:
                break
        for _ in self._threads:
            self._calls.put(None)
        until = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _work(self) -> None:
        while (given := self._calls.get()) is not None:
            future, call = given
            try:
                future.set_result(call())
            except BaseException as error:  # every end of a call is the caller's to see
                future.set_exception(error)


PART_SIZE = "part-size"
"""Metadata of an object: how large its parts are, which its checksum depends on."""

SHA256 = "sha256"
"""Metadata of an object: the SHA-256 of all of it, where the hub says it."""

SOURCE_ETAG = "source-etag"
"""Metadata of an object that S3 copied: the ETag of what it was copied from."""


@dataclass(frozen=True)
class Done:
    """A part that is done. ``said`` is what S3 told of its checksums, and ``content`` its bytes,
    each only where the next step needs it."""

    part: Part
    checksum: str = ""
    etag: str = ""
    said: Mapping[str, str] = field(default_factory=dict)
    moved: bool = False
    content: bytes | None = None


class Run(Protocol):
    """See the module."""

    item: Item
    parts: tuple[Part, ...]

    def open(self) -> None:
        """Ask what must be known, and begin."""

    def work(self, part: Part) -> Done:
        """Do one part."""

    def take(self, done: Done) -> None:
        """Take note of a part that is done."""

    def close(self) -> Run | None:
        """Finish, and raise for what is not as it should be."""


class Compare:
    """Whether what lies there has the bytes of the origin; if not, ``otherwise`` follows."""

    def __init__(self, bucket: Bucket, item: Item, otherwise: Run) -> None:
        self.item = item
        self.parts: tuple[Part, ...] = ()
        self._bucket, self._otherwise = bucket, otherwise
        self._head: Head | None = None
        self._checksums: list[str] = []

    def open(self) -> None:
        """What the hub's listing can answer needs no reading."""
        self._head = head = self._bucket.head(self.item.key)
        if head is None or _known_same(head, self.item):
            return
        each = head.metadata.get(PART_SIZE, "")
        if head.checksum.startswith("SHA256:") and (each.isdigit() or not head.composite):
            size = self.item.file.size
            self.parts = parts_of(size, int(each) if each.isdigit() else part_bytes(size))

    def work(self, part: Part) -> Done:
        """A part's checksum."""
        content = self.item.origin.read(self.item.file.name, part.start, part.size)
        return Done(part, sha256(content))

    def take(self, done: Done) -> None:
        """Remember it."""
        self._checksums.append(done.checksum)

    def close(self) -> Run | None:
        """Nothing more to do when all agrees."""
        head = self._head
        if head and _known_same(head, self.item):
            return None
        if head and self.parts and head.checksum == f"SHA256:{combined(self._checksums)}":
            return None
        return self._otherwise


def _known_same(head: Head, item: Item) -> bool:
    known = item.file.sha256
    return known is not None and head.size == item.file.size and head.metadata.get(SHA256) == known


def verify(bucket: Bucket, item: Item, checksum: str) -> None:
    """Look at the finished object. Raises CloudError when S3 has other bytes, and removes them."""
    head = bucket.head(item.key)
    if head and head.size == item.file.size and head.checksum in ("", checksum):
        return
    found = f"{head.size:,} bytes, {head.checksum}" if head else "nothing"
    if head:
        bucket.delete(item.key)
    raise CloudError(
        f"s3://{bucket.name}/{item.key} should have {item.file.size:,} bytes, {checksum}, and S3 "
        f"has {found}",
        "it was removed: repeat the command",
    )
