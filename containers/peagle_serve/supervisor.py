"""Supervises the engine: forwards its output, shuts down with it, drains it, restarts it.

starting  a crash ends the container at once, with the cause as its last line
serving   the engine reported that it is healthy; a crash restarts it, up to a limit
draining  after SIGTERM or SIGINT: running requests finish, up to a limit; new ones get 503
ended     exit code 0 if a signal ended it, else the engine's own, never 0
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING

from peagle_serve.contract import InvalidEnvironment, Settings
from peagle_serve.engine import FAILED, HEALTHY, HELLO, IDLE, EngineChild, reap
from peagle_serve.logs import DRAINING, ENDED, SERVING, STARTING, Log

if TYPE_CHECKING:
    from peagle_serve.crash import Crash

STOP_SECONDS = 10.0
"""Time from SIGTERM to SIGKILL of an engine without requests."""

_RESTART_WINDOW_SECONDS = 3600.0
_LAST_OUTPUT_SECONDS = 1.0
"""How long output is read after the engine's end; one of its children may keep the pipe open."""
_KEPT_LINES = 4000
_NEVER = float("inf")


class Supervisor:
    def __init__(
        self,
        argv: Sequence[bytes],
        environment: Mapping[bytes, bytes],
        log: Log,
        settings: Settings,
        before_start: Callable[[], object] = lambda: None,
    ) -> None:
        self._argv, self._environment = argv, environment
        self._log = log
        self._settings = settings
        self._before_start = before_start
        self._signals = 0
        self._restarts: deque[float] = deque()

    def run(self) -> int:
        """The container's exit code, when everything has ended."""
        with selectors.DefaultSelector() as selector:
            wakeup = self._install_handlers(selector)
            try:
                return self._keep_running(selector)
            finally:
                signal.set_wakeup_fd(-1)
                os.close(wakeup)

    def _keep_running(self, selector: selectors.BaseSelector) -> int:
        while True:
            self._log.stage = STARTING
            try:
                self._before_start()
                engine = EngineChild(self._argv, self._environment)
            except InvalidEnvironment as error:
                return self._report_end(
                    f"cannot start the engine: {error.message}", error.message, error.fix,
                    "environment",
                )  # fmt: skip
            except OSError as error:
                too_long = error.errno == errno.E2BIG
                return self._report_end(
                    f"cannot start the engine: {error}", str(error),
                    "shorten the variables" if too_long else "rebuild the image",
                    "environment" if too_long else "image",
                )  # fmt: skip
            monitor = EngineMonitor(engine, self._log, self._settings, lambda: self._signals)
            try:
                monitor.until_end(selector)
            finally:
                engine.close()
            if self._signals:
                self._log.stage = ENDED
                self._log.info("ended after a signal", event="ended", exit_code=0)
                return 0
            code = engine.ended or 1
            crash = monitor.crash()
            reason, cause = crash.line, crash.cause
            if not self._may_restart(monitor.was_healthy):
                return self._report_end(
                    f"the engine exited: {reason}", *crash[:3], code, crash.command
                )
            count, limit = len(self._restarts), self._settings.restarts
            self._log.warning(
                f"restarting the engine ({count} of {limit} in an hour), which exited: {reason}",
                event="restart", reason=reason, cause=cause, exit_code=code,
                restarts=count, limit=limit,
            )  # fmt: skip

    def _may_restart(self, was_healthy: bool) -> bool:
        """Count a restart, if one is allowed: an engine that was never healthy would fail again."""
        now = time.monotonic()
        while self._restarts and now - self._restarts[0] > _RESTART_WINDOW_SECONDS:
            self._restarts.popleft()
        if not was_healthy or len(self._restarts) >= self._settings.restarts:
            return False
        self._restarts.append(now)
        return True

    def _report_end(
        self, message: str, reason: str, fix: str, cause: str, code: int = 1,
        command: Sequence[str] = (),
    ) -> int:  # fmt: skip
        """Write the last line of the log. Returns the exit code."""
        self._log.stage = ENDED
        self._log.error(
            message, fix, event="crash", reason=reason, cause=cause, exit_code=code,
            restarts=len(self._restarts), **({"command": list(command)} if command else {}),
        )  # fmt: skip
        return code

    def _install_handlers(self, selector: selectors.BaseSelector) -> int:
        """Let signals wake the loop through a pipe. Returns its writing end."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._count_signal)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        selector.register(reading, selectors.EVENT_READ, lambda: _discard(reading))
        return writing

    def _count_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1


class EngineMonitor:
    def __init__(
        self, engine: EngineChild, log: Log, settings: Settings, signals: Callable[[], int]
    ) -> None:
        self.was_healthy = False
        self._engine = engine
        self._log = log
        self._settings = settings
        self._signals = signals
        self._output: deque[str] = deque(maxlen=_KEPT_LINES)
        self._can_drain = False
        self._failure = ""
        self._deadline = _NEVER
        self._at_deadline: Callable[[], None] = engine.kill
        self._handled = 0

    def until_end(self, selector: selectors.BaseSelector) -> None:
        """Return when the engine has ended and its last output is in the log."""
        sources = {
            self._engine.output: self._read_output,
            self._engine.channel.fileno(): self._read_messages,
        }
        for source, act in sources.items():
            selector.register(source, selectors.EVENT_READ, act)
        open_sources = set(sources)
        until = _NEVER
        while until == _NEVER or (self._engine.output in open_sources and until > _now()):
            wait = min(until, self._deadline) - _now()
            ready = selector.select(None if wait == _NEVER else max(0.0, wait))
            # Output first: what the engine wrote before a message belongs before it.
            for key, _ in sorted(ready, key=lambda one: one[0].fd != self._engine.output):
                if key.data() is False:
                    selector.unregister(key.fd)
                    open_sources.discard(key.fd)
            reap(self._engine)
            if self._engine.ended is not None and until == _NEVER:
                until = _now() + _LAST_OUTPUT_SECONDS
            self._handle_shutdown()
            if self._deadline <= _now():
                self._deadline = _NEVER
                self._at_deadline()
        for source in open_sources:
            selector.unregister(source)

    def crash(self) -> Crash:
        from peagle_serve.crash import (
            KILLED_FIX,
            Crash,
            parse_crash,
        )  # its patterns take time; few crash

        see_log = "see the engine's messages above"
        if self._failure:
            return Crash(self._failure, see_log, "no-drafts")
        crash = parse_crash(self._output)
        if crash.line:
            return crash._replace(fix=crash.fix or see_log, cause=crash.cause or "unknown")
        if self._engine.ended == 128 + signal.SIGKILL:
            return Crash("killed by SIGKILL", KILLED_FIX, "killed")
        return Crash(f"exit code {self._engine.ended}, without a message", see_log, "unknown")

    def _read_output(self) -> bool:
        lines = self._engine.lines()
        for line in lines or ():
            kept = self._log.engine(line)
            # A serving engine logs millions of requests; only the rest can explain a crash.
            if not self.was_healthy or "INFO" not in kept[:60]:
                self._output.append(kept)
        return lines is not None

    def _read_messages(self) -> bool:
        messages = self._engine.messages()
        for message in messages or ():
            kind, _, rest = message.partition(" ")
            if kind == HELLO:
                self._can_drain = True
            elif kind == HEALTHY:
                self.was_healthy = True
                if self._log.stage == STARTING:
                    self._log.stage = SERVING
                seconds = round(_now() - self._engine.started, 1)
                self._log.info("the engine is healthy", event="healthy", seconds=seconds)
            elif kind == FAILED:
                self._failure = rest
                self._stop()
            elif kind == IDLE:
                self._log.info("all requests are answered", event="idle")
                self._stop()
        return messages is not None

    def _handle_shutdown(self) -> None:
        """Drain after the first signal; stop at once after another."""
        signals = self._signals()
        if signals == self._handled or self._engine.ended is not None:
            return
        first, self._handled = self._handled == 0, signals
        self._log.stage = DRAINING
        seconds = self._settings.drain_seconds
        if first and self._can_drain and self._engine.drain():
            self._log.info(
                f"shutting down: draining for up to {seconds} s; new requests get 503",
                event="drain",
                seconds=seconds,
            )
            self._deadline, self._at_deadline = _now() + seconds, self._cut_off
        else:
            self._stop()

    def _cut_off(self) -> None:
        self._log.warning("drain timeout: aborting running requests", event="cut-off")
        self._stop()

    def _stop(self) -> None:
        """Ask the engine to end, and kill it if it does not."""
        self._engine.signal(signal.SIGTERM)
        self._deadline, self._at_deadline = _now() + STOP_SECONDS, self._engine.kill


def _now() -> float:
    return time.monotonic()


def _discard(descriptor: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.read(descriptor, 4096)
