"""Looks after the engine: passes on what it says, ends with it, drains it, starts it again.

starting  a crash ends the container at once, with the cause as its last line
serving   the engine has told that it is healthy; a crash starts it again, to a limit
draining  after SIGTERM or SIGINT: what runs is answered (to a limit), what is new gets 503
ended     exit code 0 if it was asked to end, else the engine's own, never 0
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

from peagle_serve.contract import Settings, WrongEnvironment
from peagle_serve.engine import FAILED, HEALTHY, HELLO, IDLE, Engine, reap
from peagle_serve.logs import DRAINING, ENDED, SERVING, STARTING, Log

STOP_SECONDS = 10.0
"""How long an engine that answers nobody any more may take to end."""

_RESTART_WINDOW_SECONDS = 3600.0
_LAST_WORDS_SECONDS = 1.0
"""How long output is awaited after the engine's end; a child of it may keep the pipe open."""
_KEPT_LINES = 4000
_FOREVER = float("inf")


class Supervisor:
    """``run`` it once."""

    def __init__(
        self,
        argv: Sequence[bytes],
        environment: Mapping[bytes, bytes],
        log: Log,
        settings: Settings,
        ready_to_start: Callable[[], object] = lambda: None,
    ) -> None:
        self._argv, self._environment = argv, environment
        self._log = log
        self._settings = settings
        self._ready_to_start = ready_to_start
        self._told_to_end = 0
        self._restarts: deque[float] = deque()

    def run(self) -> int:
        """The container's exit code, when all has ended."""
        with selectors.DefaultSelector() as selector:
            wakeup = self._listen_to_signals(selector)
            try:
                return self._keep_running(selector)
            finally:
                signal.set_wakeup_fd(-1)
                os.close(wakeup)

    def _keep_running(self, selector: selectors.BaseSelector) -> int:
        while True:
            self._log.stage = STARTING
            try:
                self._ready_to_start()
                engine = Engine(self._argv, self._environment)
            except (WrongEnvironment, OSError) as error:
                return self._give_up(error)
            watch = Watch(engine, self._log, self._settings, lambda: self._told_to_end)
            try:
                watch.until_end(selector)
            finally:
                engine.close()
            if self._told_to_end:
                return self._end_as_told()
            code = engine.ended or 1
            if not self._may_restart(watch):
                return self._end_of_crash(watch, code)

    def _may_restart(self, watch: Watch) -> bool:
        """Only after it was healthy: an engine that never starts would never start."""
        now = time.monotonic()
        while self._restarts and now - self._restarts[0] > _RESTART_WINDOW_SECONDS:
            self._restarts.popleft()
        if not watch.was_healthy or len(self._restarts) >= self._settings.restarts:
            return False
        self._restarts.append(now)
        line, _, _ = watch.why()
        count = f"{len(self._restarts)} of {self._settings.restarts}"
        self._log.warning(f"the engine ended: {line}; it is started again ({count} in an hour)")
        return True

    def _end_of_crash(self, watch: Watch, code: int) -> int:
        line, fix, cause = watch.why()
        self._log.stage = ENDED
        self._log.error(f"the engine ended: {line}", fix, cause=cause, exit_code=code)
        return code

    def _end_as_told(self) -> int:
        self._log.stage = ENDED
        self._log.info("ended, as it was told to")
        return 0

    def _give_up(self, error: Exception) -> int:
        what = error.message if isinstance(error, WrongEnvironment) else str(error)
        fix = error.fix if isinstance(error, WrongEnvironment) else "the image is not complete"
        self._log.stage = ENDED
        self._log.error(f"the engine cannot be started: {what}", fix, exit_code=1)
        return 1

    def _listen_to_signals(self, selector: selectors.BaseSelector) -> int:
        """Signals wake the loop through a pipe. Gives back its writing end."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note_end)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        selector.register(reading, selectors.EVENT_READ, lambda: _drop(reading))
        return writing

    def _note_end(self, number: int, frame: FrameType | None) -> None:
        self._told_to_end += 1


class Watch:
    """One engine, from its start to its end."""

    def __init__(
        self, engine: Engine, log: Log, settings: Settings, told_to_end: Callable[[], int]
    ) -> None:
        self.was_healthy = False
        self._engine = engine
        self._log = log
        self._settings = settings
        self._told_to_end = told_to_end
        self._said: deque[str] = deque(maxlen=_KEPT_LINES)
        self._can_drain = False
        self._failure = ""
        self._limit = _FOREVER
        self._at_limit: Callable[[], None] = engine.kill
        self._heeded = 0

    def until_end(self, selector: selectors.BaseSelector) -> None:
        """Return when the engine has ended and its last words are in the log."""
        sources = {
            self._engine.output: self._hear_output,
            self._engine.news.fileno(): self._hear_news,
        }
        for source, act in sources.items():
            selector.register(source, selectors.EVENT_READ, act)
        open_sources = set(sources)
        until = _FOREVER
        while until == _FOREVER or (self._engine.output in open_sources and until > _now()):
            wait = min(until, self._limit) - _now()
            ready = selector.select(None if wait == _FOREVER else max(0.0, wait))
            # Output first: what the engine wrote before its news belongs before them.
            for key, _ in sorted(ready, key=lambda one: one[0].fd != self._engine.output):
                if key.data() is False:
                    selector.unregister(key.fd)
                    open_sources.discard(key.fd)
            reap(self._engine)
            if self._engine.ended is not None and until == _FOREVER:
                until = _now() + _LAST_WORDS_SECONDS
            self._heed_the_end()
            if self._limit <= _now():
                self._limit = _FOREVER
                self._at_limit()
        for source in open_sources:
            selector.unregister(source)

    def why(self) -> tuple[str, str, str]:
        """Line, fix and kind of what ended the engine."""
        from peagle_serve.crash import (
            find_crash,  # its patterns take time, and most engines do not crash
        )

        if self._failure:
            return self._failure, "see the engine's own lines above", "no-drafts"
        crash = find_crash(self._said)
        if crash.line:
            fix = crash.fix or "see the engine's own lines above"
            return crash.line, fix, crash.cause or "unknown"
        if self._engine.ended == 128 + signal.SIGKILL:
            return "it was killed", "perhaps for want of memory: take a larger machine", "killed"
        return (
            f"without a word, with exit code {self._engine.ended}",
            "see the log above",
            "unknown",
        )

    def _hear_output(self) -> bool:
        lines = self._engine.lines()
        for line in lines or ():
            kept = self._log.engine(line)
            if not self.was_healthy or _may_matter(kept):
                self._said.append(kept)
        return lines is not None

    def _hear_news(self) -> bool:
        words = self._engine.words()
        for word in words or ():
            kind, _, rest = word.partition(" ")
            if kind == HELLO:
                self._can_drain = True
            elif kind == HEALTHY:
                self._is_healthy()
            elif kind == FAILED:
                self._failure = rest
                self._stop()
            elif kind == IDLE:
                self._log.info("all requests are answered")
                self._stop()
        return words is not None

    def _is_healthy(self) -> None:
        self.was_healthy = True
        if self._log.stage == STARTING:
            self._log.stage = SERVING
        seconds = round(_now() - self._engine.started, 1)
        self._log.info("the engine is healthy", seconds=seconds)

    def _heed_the_end(self) -> None:
        """Begin to drain when told to end; hurry when told again."""
        told = self._told_to_end()
        if told == self._heeded or self._engine.ended is not None:
            return
        first, self._heeded = self._heeded == 0, told
        self._log.stage = DRAINING
        seconds = self._settings.drain_seconds
        if first and self._can_drain and self._engine.drain():
            self._log.info(f"told to end: running requests have {seconds} s, new ones get 503")
            self._limit, self._at_limit = _now() + seconds, self._cut_off
        else:
            self._stop()

    def _cut_off(self) -> None:
        self._log.warning("the time to drain is over: what still runs is cut off")
        self._stop()

    def _stop(self) -> None:
        """Ask the engine to end, and do not wait for ever."""
        self._engine.signal(signal.SIGTERM)
        self._limit, self._at_limit = _now() + STOP_SECONDS, self._engine.kill


def _may_matter(line: str) -> bool:
    """Of a serving engine only errors are kept: millions of lines say that somebody asked."""
    return "INFO" not in line[:60]


def _now() -> float:
    return time.monotonic()


def _drop(descriptor: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.read(descriptor, 4096)
