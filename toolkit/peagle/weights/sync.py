"""Bring everything there: compare what lies there, copy what does not, several parts at a time.

Whatever ends it early, the next run goes on: finished objects are compared by their checksums, and
of unfinished ones the parts that S3 holds are kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, replace
from functools import partial

from peagle.aws.client import Aws
from peagle.aws.s3 import create_bucket
from peagle.weights.bucket import Bucket
from peagle.weights.lock import Lock, held
from peagle.weights.manifest import Copied, Entry, Folder, Manifest, read_manifest, write_manifest
from peagle.weights.queue import WORKERS, Compare, Done, Meter, Moment, Run, Workers
from peagle.weights.sources import part_bytes
from peagle.weights.sync_plan import Item, Survey, from_here, kept_bytes
from peagle.weights.transfer import ServerCopy, UploadInParts, UploadWhole

_AHEAD = 2 * WORKERS
"""Parts under way or done out of order: this times the size of a part is the memory needed."""

_TICK_SECONDS = 0.5


@dataclass(frozen=True)
class Outcome:
    """Bytes that were moved, and the manifest as it was written."""

    moved: int
    manifest: Manifest


def sync(
    aws: Aws,
    survey: Survey,
    copied: Copied,
    tell: Callable[[Moment], object],
    take_over: bool = False,
) -> Outcome:
    """Copy what ``survey`` found; ``tell`` gets how far it is.

    Raises Refused when somebody else is at work there, unless they are to be taken over, and other
    PeagleErrors; those and KeyboardInterrupt leave a state that the next call goes on with.
    """
    if survey.makes_bucket:
        create_bucket(aws, survey.place.bucket)
    bucket = Bucket(aws, survey.place.bucket)
    with held(bucket, survey.place, f"copies {copied.pair}", take_over) as lock:
        return _copy(bucket, survey, copied, tell, lock)


def _copy(
    bucket: Bucket, survey: Survey, copied: Copied, tell: Callable[[Moment], object], lock: Lock
) -> Outcome:
    """With the prefix to ourselves: what lies there is listed anew, for others may have copied
    since it was looked at."""
    begun = bucket.begun(survey.place.prefix)  # first, since one can become an object meanwhile
    there, known = bucket.sizes(survey.place.prefix), read_manifest(bucket, survey.place)
    survey = replace(survey, there=there, manifest=known)
    _forget_other_origins(bucket, survey, begun)
    write_manifest(bucket, survey.place, known | _folders(survey, copied, {}))
    meter = Meter(survey.size, tell)
    _expect(meter, survey, kept_bytes(bucket, survey.items, begun))
    workers = Workers()
    line = _Line(meter, workers, lock.keep)
    try:
        line.run(_runs(bucket, survey, begun))
    finally:
        workers.end()
        line.count_done()
    manifest = known | _folders(survey, copied, _checksums(bucket, survey.items))
    lock.keep(now=True)
    write_manifest(bucket, survey.place, manifest)
    return Outcome(meter.moved, manifest)


def _expect(meter: Meter, survey: Survey, kept: Mapping[str, int]) -> None:
    """What earlier runs left counts from the start, parts of unfinished files included."""
    for item in survey.present:
        meter.expect(item.name, item.file.size)
    for item in survey.items:
        if item.key in kept:
            meter.expect(item.name, kept[item.key])
    if meter.done:
        meter.tick()


def _forget_other_origins(bucket: Bucket, survey: Survey, begun: dict[str, list[str]]) -> None:
    """Unfinished uploads of other weights are not gone on with."""
    for item in survey.items:
        if from_here(item, survey.manifest):
            continue
        for upload in begun.pop(item.key, ()):
            bucket.abort(item.key, upload)


def _folders(survey: Survey, copied: Copied, checksums: Mapping[str, str]) -> Manifest:
    """What should lie there; it does once the checksums are known."""
    found = {}
    for part, origin in survey.origins.items():
        files = {
            item.file.name: Entry(item.file.size, item.file.sha256, checksums.get(item.key))
            for item in survey.items
            if item.part == part
        }
        found[part] = Folder(
            source=origin.location,
            complete=bool(checksums),
            files=files,
            pair=copied.pair,
            parallel_drafting=copied.parallel_drafting if part == "drafter" else None,
            given=part in copied.given,
        )
    return found


def _checksums(bucket: Bucket, items: Iterable[Item]) -> dict[str, str]:
    heads = ((item.key, bucket.head(item.key)) for item in items)
    return {key: head.checksum for key, head in heads if head}


def _runs(bucket: Bucket, survey: Survey, begun: Mapping[str, list[str]]) -> Iterator[Run]:
    present = {item.key for item in survey.present}
    for item in survey.items:
        compared = item.key in present and item.origin.copied_from is None
        run = _run(bucket, item, begun.get(item.key, []), compared)
        yield Compare(bucket, item, run) if compared else run


def _run(bucket: Bucket, item: Item, begun: list[str], compared: bool) -> Run:
    if item.origin.copied_from is not None:
        return ServerCopy(bucket, item, item.origin.copied_from, begun)
    if item.file.size <= part_bytes(item.file.size):
        return UploadWhole(bucket, item)
    return UploadInParts(bucket, item, begun, compared)


_Result = Done | Run | None


class _Line:
    """Runs one after the other, their parts at the same time, taken in order; ``keep`` is called
    all the while."""

    def __init__(self, meter: Meter, workers: Workers, keep: Callable[[], object]) -> None:
        self._meter, self._workers, self._keep = meter, workers, keep
        self._waiting: deque[tuple[Run, Future[_Result]]] = deque()
        self._again: deque[Run] = deque()

    def run(self, runs: Iterator[Run]) -> None:
        """Do them all."""
        while (run := self._next(runs)) is not None:
            run.open()
            for part in run.parts:
                self._put(run, partial(run.work, part))
            if not run.parts:
                self._put(run, run.close)

    def count_done(self) -> None:
        """Count the parts that came there out of order, once it has ended early."""
        for run, future in self._waiting:
            if future.done() and not future.cancelled() and future.exception() is None:
                result = future.result()
                if isinstance(result, Done):
                    self._meter.advance(run.item.name, result.part.size, result.moved)

    def _next(self, runs: Iterator[Run]) -> Run | None:
        """The next one; where there is none, what is under way may still hand one back."""
        while not self._again:
            following = next(runs, None)
            if following is not None:
                return following
            if not self._waiting:
                return None
            self._settle()
        return self._again.popleft()

    def _put(self, run: Run, call: Callable[[], _Result]) -> None:
        while len(self._waiting) >= _AHEAD:
            self._settle()
        self._waiting.append((run, self._workers.submit(call)))

    def _settle(self) -> None:
        """Take the result that has waited longest; after a run's last part comes its end."""
        run, future = self._waiting[0]
        result = self._result(future)  # when this is interrupted, ``count_done`` sees it still
        self._waiting.popleft()
        if isinstance(result, Done):
            run.take(result)
            self._meter.advance(run.item.name, result.part.size, result.moved)
            if result.part is run.parts[-1]:
                self._meter.settled(run.item.name)
                self._waiting.append((run, self._workers.submit(run.close)))
        elif result is not None:
            self._meter.withdraw(sum(part.size for part in run.parts))
            self._meter.settled(run.item.name)
            self._again.append(result)
        elif not run.parts:
            self._meter.advance(run.item.name, run.item.file.size, moved=False)

    def _result(self, future: Future[_Result]) -> _Result:
        while True:
            self._keep()
            try:
                return future.result(timeout=_TICK_SECONDS)
            except NotYet:
                if future.done():
                    raise
                self._meter.tick()
