"""How far a copy is, how fast, and how long it still takes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

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
