"""Files on their way to S3: their parts, checksums and progress, and the queue that runs transfers.

A transfer is opened, works on its parts in other threads, and is closed. S3's checksum of an object
in parts is the SHA-256 of the SHA-256s of its parts (ChecksumType COMPOSITE), so it can only be
compared with the part size known; the part size is kept in the object's metadata. Results are taken
in order. The threads end with the program, so a second Ctrl-C does not wait for them.
"""

from __future__ import annotations

import base64
import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

from peagle.weights.sources import SourceFile, WeightSource

PART_BYTES = 16 * 1024 * 1024
"""Large enough that requests cost little, small enough that repeating one does too."""

MAX_PARTS = 10_000
"""Of an S3 multipart upload."""

_MIB = 1024 * 1024

PART_SIZE = "part-size"
"""Object metadata: the part size in bytes, on which the checksum depends."""

SHA256 = "sha256"
"""Object metadata: the SHA-256 of the whole file, where the Hub lists it."""

SOURCE_ETAG = "source-etag"
"""Object metadata of a server-side copy: the ETag of the original."""


@dataclass(frozen=True)
class FilePart:
    """``size`` bytes of a file from ``start``; numbers begin at 1, as in S3."""

    number: int
    start: int
    size: int


def part_bytes(size: int) -> int:
    """The part size of a file of ``size`` bytes: the same in every run."""
    smallest = -(-size // MAX_PARTS)
    return max(PART_BYTES, -(-smallest // _MIB) * _MIB)


def parts_of(size: int, each: int) -> tuple[FilePart, ...]:
    """The parts of a file; an empty file is one empty part."""
    starts = range(0, size, each) if size else (0,)
    return tuple(FilePart(n, at, min(each, size - at)) for n, at in enumerate(starts, 1))


def sha256(content: bytes) -> str:
    """SHA-256 as S3 writes it."""
    return base64.b64encode(hashlib.sha256(content).digest()).decode()


def combined(checksums: Iterable[str]) -> str:
    """The checksum of an object from those of its parts."""
    each = list(checksums)
    if len(each) == 1:
        return each[0]
    return sha256(b"".join(base64.b64decode(checksum) for checksum in each))


@dataclass(frozen=True)
class FileTransfer:
    """One file of a sync: the part (target or drafter), the source, and the key in S3."""

    part: str
    source: WeightSource
    file: SourceFile
    key: str

    @property
    def name(self) -> str:
        """``target/config.json``."""
        return f"{self.part}/{self.file.name}"

    @property
    def size(self) -> int:
        return self.file.size

    def read(self, start: int, size: int) -> bytes:
        """Exactly these bytes of the source. Raises CheckpointError."""
        return self.source.read(self.file.name, start, size)


@dataclass(frozen=True)
class PartResult:
    """A finished part. ``checksums`` are those that S3 reported, and ``content`` its bytes, each
    only where the next step needs it."""

    part: FilePart
    checksum: str = ""
    etag: str = ""
    checksums: Mapping[str, str] = field(default_factory=dict)
    moved: bool = False
    content: bytes | None = None


class Transfer(Protocol):
    """What brings or verifies one file. ``work`` runs in worker threads; ``open`` and ``take`` run
    in one thread, ``take`` in the order of the parts."""

    item: FileTransfer
    parts: tuple[FilePart, ...]

    def open(self) -> None:
        """Look at the source and at S3, and begin."""

    def work(self, part: FilePart) -> PartResult:
        """Process one part."""

    def take(self, result: PartResult) -> None:
        """Record a finished part."""

    def close(self) -> Transfer | None:
        """Finish and verify; another transfer where the file still needs one."""


WORKERS = 8
"""boto3 keeps ten connections."""

GRACE_SECONDS = 10.0
"""How long parts in flight may take to finish when a sync ends early."""

_AHEAD = 2 * WORKERS
"""Parts in flight or finished out of order: memory use is this times the part size."""

_TICK_SECONDS = 0.5
_WINDOW_SECONDS = 15.0
"""Speed is measured over the last seconds, so that the time left follows the network."""

_MIN_SECONDS = 2.0
"""No estimate of the time left before this."""

T = TypeVar("T")
_Call = tuple[Future[Any], Callable[[], Any]]
_Result = PartResult | Transfer | None


@dataclass(frozen=True)
class SyncProgress:
    """Bytes in place of ``total``, bytes moved by this run, bytes per second, seconds left
    (``None`` while unknown), and the current file."""

    done: int
    total: int
    moved: int
    speed: float
    seconds_left: float | None
    file: str


class Meter:
    """Counts bytes. Bytes of earlier runs count as done, but not towards the speed."""

    def __init__(
        self,
        total: int,
        report: Callable[[SyncProgress], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total, self._report, self._clock = total, report, clock
        self._done = 0
        self.moved = 0
        self._expected: dict[str, int] = {}
        self._file = ""
        self._begin = clock()
        self._marks: deque[tuple[float, int]] = deque([(self._begin, 0)])

    @property
    def done(self) -> int:
        """Bytes in place, including those of earlier runs that are still to be verified."""
        return min(self._total, self._done + sum(self._expected.values()))

    def expect(self, file: str, count: int) -> None:
        """An earlier run left ``count`` bytes of ``file``."""
        self._expected[file] = count

    def finish(self, file: str) -> None:
        """No more bytes of earlier runs are expected of ``file``."""
        self._expected.pop(file, None)

    def advance(self, file: str, count: int, moved: bool) -> None:
        """``count`` bytes of ``file`` are in place, ``moved`` by this run or there already."""
        self._file = file
        self._done += count
        if not moved and file in self._expected:
            self._expected[file] = max(0, self._expected[file] - count)
        self.moved += count if moved else 0
        self._marks.append((self._clock(), self.moved))
        self.tick()

    def withdraw(self, count: int) -> None:
        """Subtract bytes that were counted as done but differ."""
        self._done -= count

    def tick(self) -> None:
        now = self._clock()
        while len(self._marks) > 2 and now - self._marks[1][0] > _WINDOW_SECONDS:
            self._marks.popleft()
        since, before = self._marks[0]
        speed = (self.moved - before) / (now - since) if now > since else 0.0
        known = speed > 0 and now - self._begin >= _MIN_SECONDS
        left = (self._total - self.done) / speed if known else None
        self._report(SyncProgress(self.done, self._total, self.moved, speed, left, self._file))


class Workers:
    """Threads that run calls in the order of submission."""

    def __init__(self, count: int = WORKERS) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._calls.put((future, call))
        return future

    def end(self, patience: float = GRACE_SECONDS) -> None:
        """Start no more calls; wait up to ``patience`` seconds for those that run."""
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
            except BaseException as error:  # the caller receives every kind of failure
                future.set_exception(error)


class TransferQueue:
    """Opens transfers one after the other, runs their parts in parallel and takes the results in
    order. ``renew`` is called regularly, for the lock."""

    def __init__(self, meter: Meter, renew: Callable[[], object]) -> None:
        self._meter, self._renew = meter, renew
        self._workers = Workers()
        self._waiting: deque[tuple[Transfer, Future[_Result]]] = deque()
        self._follow_ups: deque[Transfer] = deque()

    def run(self, transfers: Iterator[Transfer]) -> None:
        """Run all transfers, and those that they hand back. Raises the first failure, after parts
        in flight have finished or ``GRACE_SECONDS`` have passed."""
        try:
            while (transfer := self._next(transfers)) is not None:
                transfer.open()
                for part in transfer.parts:
                    self._put(transfer, partial(transfer.work, part))
                if not transfer.parts:
                    self._put(transfer, transfer.close)
        finally:
            self._workers.end()
            self._count_finished()

    def _count_finished(self) -> None:
        """Count the parts that finished out of order before an early end."""
        for transfer, future in self._waiting:
            if future.done() and not future.cancelled() and future.exception() is None:
                result = future.result()
                if isinstance(result, PartResult):
                    self._meter.advance(transfer.item.name, result.part.size, result.moved)

    def _next(self, transfers: Iterator[Transfer]) -> Transfer | None:
        while not self._follow_ups:
            following = next(transfers, None)
            if following is not None:
                return following
            if not self._waiting:
                return None
            self._take_oldest()
        return self._follow_ups.popleft()

    def _put(self, transfer: Transfer, call: Callable[[], _Result]) -> None:
        while len(self._waiting) >= _AHEAD:
            self._take_oldest()
        self._waiting.append((transfer, self._workers.submit(call)))

    def _take_oldest(self) -> None:
        """Take the oldest result; the last part of a transfer is followed by its ``close``."""
        transfer, future = self._waiting[0]
        result = self._result(future)  # on an interrupt, ``_count_finished`` still sees the entry
        self._waiting.popleft()
        name = transfer.item.name
        if isinstance(result, PartResult):
            transfer.take(result)
            self._meter.advance(name, result.part.size, result.moved)
            if result.part is transfer.parts[-1]:
                self._meter.finish(name)
                self._waiting.append((transfer, self._workers.submit(transfer.close)))
        elif result is not None:
            self._meter.withdraw(sum(part.size for part in transfer.parts))
            self._meter.finish(name)
            self._follow_ups.append(result)
        elif not transfer.parts:
            self._meter.advance(name, transfer.item.file.size, moved=False)

    def _result(self, future: Future[_Result]) -> _Result:
        while True:
            self._renew()
            try:
                return future.result(timeout=_TICK_SECONDS)
            except TimeoutError:
                if future.done():
                    raise
                self._meter.tick()
