"""Runs vLLM as a child: forwards its output, drains it, restarts it, ends with it.

starting  a crash ends the container at once, with the cause as its last line
serving   the engine reported that it is healthy; a crash restarts it, up to a limit
draining  after SIGTERM or SIGINT: running requests finish, up to a limit; new ones get 503
ended     exit code 0 if a signal ended it, else the engine's own, never 0

The engine's output comes through a pipe, and messages of one line each through a socket. From the
engine's middleware: ``hello`` (it can be drained), ``healthy``, ``idle`` (all requests are
answered), ``failed REASON``. From the supervisor: ``drain``.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING

from peagle_serve.contract import (
    DRAIN,
    FAILED,
    HEALTHY,
    HELLO,
    IDLE,
    SOCKET_VARIABLE,
    STARTED_VARIABLE,
    Settings,
)
from peagle_serve.logs import DRAINING, ENDED, SERVING, STARTING, Log

if TYPE_CHECKING:
    from peagle_serve.crash import Crash

STOP_SECONDS = 10.0
"""Time from SIGTERM to SIGKILL of an engine without requests."""
_RESTART_WINDOW_SECONDS = 3600.0
_LAST_OUTPUT_SECONDS = 1.0
"""How long output is read after the engine's end; one of its children may keep the pipe open."""
_KEPT_LINES = 4000
_READ_BYTES = 65536
_LONGEST_LINE = 1_000_000
"""Bytes; a longer line is split."""
_NEVER = float("inf")


class Supervisor:
    """Starts ``argv`` with ``environment`` until it has ended for good."""

    def __init__(
        self,
        argv: Sequence[bytes],
        environment: Mapping[bytes, bytes],
        log: Log,
        settings: Settings,
    ) -> None:
        self.argv, self.environment = argv, environment
        self.log, self.settings = log, settings
        self.signals = 0
        """How many have asked for the end."""
        self._restarts: deque[float] = deque()

    def run(self) -> int:
        """The container's exit code, when everything has ended."""
        with selectors.DefaultSelector() as selector:
            # Signals wake the loop through a pipe.
            reading, writing = os.pipe()
            os.set_blocking(reading, False)
            os.set_blocking(writing, False)
            signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

            def count(number: int, frame: FrameType | None) -> None:
                self.signals += 1

            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, count)
            signal.signal(signal.SIGCHLD, lambda number, frame: None)

            def discard() -> None:
                with contextlib.suppress(BlockingIOError):
                    os.read(reading, 4096)

            selector.register(reading, selectors.EVENT_READ, discard)
            try:
                return self._keep_running(selector)
            finally:
                signal.set_wakeup_fd(-1)
                os.close(writing)

    def _keep_running(self, selector: selectors.BaseSelector) -> int:
        while True:
            self.log.stage = STARTING
            try:
                engine = Engine(self)
            except OSError as error:
                message = f"cannot start the engine: {error}"
                return self._report_end(message, str(error), "rebuild the image", "image")
            try:
                engine.run_until_end(selector)
            finally:
                engine.close()
            if self.signals:
                self.log.stage = ENDED
                self.log.info("ended after a signal", event="ended", exit_code=0)
                return 0
            code, crash = engine.exit_status or 1, engine.crash()
            now = time.monotonic()
            while self._restarts and now - self._restarts[0] > _RESTART_WINDOW_SECONDS:
                self._restarts.popleft()
            limit = self.settings.restarts
            # An engine that was never healthy would fail again.
            if not engine.was_healthy or len(self._restarts) >= limit:
                message = f"the engine exited: {crash.line}"
                return self._report_end(message, *crash[:3], code, crash.command)
            self._restarts.append(now)
            count = len(self._restarts)
            self.log.warning(
                f"restarting the engine ({count} of {limit} in an hour), which exited: "
                f"{crash.line}",
                event="restart", reason=crash.line, cause=crash.cause, exit_code=code,
                restarts=count, limit=limit,
            )  # fmt: skip

    def _report_end(
        self, message: str, reason: str, fix: str, cause: str, code: int = 1,
        command: Sequence[str] = (),
    ) -> int:  # fmt: skip
        """Write the last line of the log. Returns the exit code."""
        self.log.stage = ENDED
        self.log.error(
            message, fix, event="crash", reason=reason, cause=cause, exit_code=code,
            restarts=len(self._restarts), **({"command": list(command)} if command else {}),
        )  # fmt: skip
        return code


class Engine:
    """A running engine of the supervisor, in its own process group."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.was_healthy = False
        self.exit_status: int | None = None
        """Once it has ended; 128 plus the number of the signal that killed it."""
        self._supervisor, self._log = supervisor, supervisor.log
        self._handled = 0
        """Signals that were acted on."""
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._partial = b""
        self._can_drain = False
        self._failure = ""
        self._deadline = _NEVER
        self._at_deadline = self.kill
        self._output, writing = os.pipe()
        self._channel, remote = socket.socketpair()
        os.set_blocking(self._output, False)
        self._channel.setblocking(False)
        remote.set_inheritable(True)
        self._started = time.monotonic()
        ours = {
            SOCKET_VARIABLE.encode(): b"%d" % remote.fileno(),
            STARTED_VARIABLE.encode(): b"%.3f" % self._started,
        }
        try:
            self._pid = os.posix_spawn(
                supervisor.argv[0],
                list(supervisor.argv),
                {**supervisor.environment, **ours},
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, writing, 1),
                    (os.POSIX_SPAWN_DUP2, writing, 2),
                ],
                setpgroup=0,
                setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD],
            )
        finally:
            os.close(writing)
            remote.close()

    def run_until_end(self, selector: selectors.BaseSelector) -> None:
        """Return when the engine has ended and its last output is in the log."""
        sources = {self._output: self._read_output, self._channel.fileno(): self._read_messages}
        for source, act in sources.items():
            selector.register(source, selectors.EVENT_READ, act)
        open_sources = set(sources)
        until = _NEVER
        while until == _NEVER or (self._output in open_sources and until > time.monotonic()):
            wait = min(until, self._deadline) - time.monotonic()
            ready = selector.select(None if wait == _NEVER else max(0.0, wait))
            # Output first: what the engine wrote before a message belongs before it.
            for key, _ in sorted(ready, key=lambda item: item[0].fd != self._output):
                if key.data() is False:
                    selector.unregister(key.fd)
                    open_sources.discard(key.fd)
            self._reap()
            if self.exit_status is not None and until == _NEVER:
                until = time.monotonic() + _LAST_OUTPUT_SECONDS
            self._handle_signals()
            if self._deadline <= time.monotonic():
                self._deadline = _NEVER
                self._at_deadline()
        for source in open_sources:
            selector.unregister(source)

    def crash(self) -> Crash:
        """Why it ended."""
        from peagle_serve.crash import KILLED, Crash, parse_crash  # few crash

        see_log = "see the engine's messages above"
        if self._failure:
            return Crash(self._failure, see_log, "no-drafts")
        crash = parse_crash(self._lines)
        if crash.line:
            return crash._replace(fix=crash.fix or see_log, cause=crash.cause or "unknown")
        if self.exit_status == 128 + signal.SIGKILL:
            return KILLED._replace(line="killed by SIGKILL")
        return Crash(f"exit code {self.exit_status}, without a message", see_log, "unknown")

    def kill(self) -> None:
        """Kill the engine and its children."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill what is left of it, and close its output."""
        self.kill()
        os.close(self._output)
        self._channel.close()

    def _read_output(self) -> bool:
        """Log the lines that have arrived. False at the end of the output."""
        try:
            content = os.read(self._output, _READ_BYTES)
        except BlockingIOError:
            return True
        *lines, self._partial = (self._partial + content).split(b"\n")
        if self._partial and (not content or len(self._partial) > _LONGEST_LINE):
            lines.append(self._partial)
            self._partial = b""
        for line in lines:
            kept = self._log.engine(line.decode("utf-8", errors="replace"))
            # A serving engine logs millions of requests; only the rest can explain a crash.
            if not self.was_healthy or "INFO" not in kept[:60]:
                self._lines.append(kept)
        return bool(content)

    def _read_messages(self) -> bool:
        """Act on the messages that have arrived. False when the engine has closed its end."""
        try:
            content = self._channel.recv(4096)
        except BlockingIOError:
            return True
        except OSError:
            return False
        for message in content.decode("utf-8", errors="replace").splitlines():
            kind, _, rest = message.partition(" ")
            if kind == HELLO:
                self._can_drain = True
            elif kind == HEALTHY:
                self.was_healthy = True
                if self._log.stage == STARTING:
                    self._log.stage = SERVING
                seconds = round(time.monotonic() - self._started, 1)
                self._log.info("the engine is healthy", event="healthy", seconds=seconds)
            elif kind == FAILED:
                self._failure = rest
                self._stop()
            elif kind == IDLE:
                self._log.info("all requests are answered", event="idle")
                self._stop()
        return bool(content)

    def _reap(self) -> None:
        """Collect the exit status of every ended child, orphans included: a container's first
        process inherits them."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._pid:
                    code = os.waitstatus_to_exitcode(ended[1])
                    self.exit_status = code if code >= 0 else 128 - code

    def _handle_signals(self) -> None:
        """Drain after the first signal; stop at once after another."""
        signals = self._supervisor.signals
        if signals == self._handled or self.exit_status is not None:
            return
        drains, self._handled = self._handled == 0 and self._can_drain, signals
        self._log.stage = DRAINING
        try:  # to let it finish its requests and reject new ones
            drains = drains and bool(self._channel.send(f"{DRAIN}\n".encode()))
        except OSError:
            drains = False
        if not drains:
            self._stop()
            return
        seconds = self._supervisor.settings.drain_seconds
        self._log.info(
            f"shutting down: draining for up to {seconds} s; new requests get 503",
            event="drain",
            seconds=seconds,
        )
        self._deadline, self._at_deadline = time.monotonic() + seconds, self._cut_off

    def _cut_off(self) -> None:
        self._log.warning("drain timeout: aborting running requests", event="cut-off")
        self._stop()

    def _stop(self) -> None:
        """Ask the engine to end, with its own children, and kill it if it does not."""
        if self.exit_status is None:
            os.kill(self._pid, signal.SIGTERM)
        self._deadline, self._at_deadline = time.monotonic() + STOP_SECONDS, self.kill
