"""One engine behind an endpoint, from the download of its weights to its end."""

from __future__ import annotations

import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from peagle.engine.cpu import cannot_run, for_cpu
from peagle.engine.logs import crash_of
from peagle.engine.machine import this_machine
from peagle.engine.process import EngineProcess, is_alive, is_healthy, stop_engine
from peagle.engine_log import LOG_INTERVAL_VARIABLE
from peagle.errors import PeagleError
from peagle.protocol import log_group
from peagle.sandbox import state
from peagle.sandbox.launch import (
    TINY,
    ModelDataError,
    download,
    launch,
    mount_tiny,
    only_in_image,
    weight_bytes,
)
from peagle.sandbox.launch_spec import LaunchSpec, not_applied, stand_in_for
from peagle.sandbox.logs import LogTail, stock_line
from peagle.sandbox.state import catalog, engine_version
from peagle_serve.contract import (
    COLLECT,
    DRAIN_SECONDS,
    HUB_MODEL,
    MODEL,
    OFF,
    SERVED_NAME,
    WARM_FOLDER,
    WARM_MODE_VARIABLE,
)

_POLL_SECONDS = 0.05


class LaunchFailed(Exception):
    """The engine did not start; the message is the endpoint's FailureReason."""


class Draining(Exception):
    """The engine takes no further request: another one serves instead."""


class EngineInstance:
    """One engine. ``start`` and ``end`` may run in different threads, ``end`` at any time."""

    def __init__(self, spec: LaunchSpec) -> None:
        self.spec = spec
        self.id = f"i-{secrets.token_hex(9)[:17]}"
        self.process: EngineProcess | None = None
        self.stand_in: str | None = None
        self.not_applied: tuple[str, ...] = ()
        self.started_at = time.time()
        self._folder = state.endpoints_folder() / spec.region / spec.endpoint / self.id
        self._ml_root = self._folder / "ml"
        self._log = self._folder / "engine.log"
        stream = f"{spec.variant}/{self.id}"
        written = stock_line if spec.plain else str
        group = log_group(spec.component or spec.endpoint, copies=bool(spec.component))
        self._tail = LogTail(self._log, spec.region, group, stream, written)
        self._ended = threading.Event()
        self.in_progress = 0
        self._in_progress_changed = threading.Condition()
        self._drains = False

    @property
    def other_engine(self) -> str | None:
        """The version of vLLM that runs here if the image names another."""
        here = engine_version()
        return None if self.spec.vllm in (None, here) else here

    def start(self, on_chosen: Callable[[EngineInstance], object]) -> None:
        """Return when the engine answers /ping.

        ``on_chosen`` is called when it is known what is launched. Raises LaunchFailed; then nothing
        is left running.
        """
        try:
            self._tail.start()
            self._write(*self.spec.limitations)
            self._download_weights()
            environment = self._environment()
            on_chosen(self)
            self._start_engine(environment)
            self._wait_until_healthy()
        except LaunchFailed:
            self.end()
            raise

    def give_up(self) -> None:
        """Let a ``start`` that waits in another thread fail."""
        self._ended.set()

    def end(self) -> None:
        """End the engine and delete its weights; return when nothing is left. May be repeated."""
        self.give_up()
        if self.process:
            stop_engine(self.process, state.ENGINE_GRACE_SECONDS)
            state.forget_engine(self.process)
        self._tail.end()
        shutil.rmtree(self._folder, ignore_errors=True)

    @contextmanager
    def invocation(self) -> Iterator[None]:
        """Count an invocation as in progress. Raises Draining."""
        with self._in_progress_changed:
            if self._drains:
                raise Draining
            self.in_progress += 1
        try:
            yield
        finally:
            with self._in_progress_changed:
                self.in_progress -= 1
                self._in_progress_changed.notify_all()

    def drain(self) -> None:
        """Admit no further invocation, and wait until none is in progress, at most
        DRAIN_SECONDS."""
        with self._in_progress_changed:
            self._drains = True
            self._in_progress_changed.wait_for(lambda: self.in_progress == 0, DRAIN_SECONDS)

    def end_reason(self) -> str | None:
        """The deciding line of the log if the engine has ended; ``None`` while it runs."""
        if self.process and is_alive(self.process):
            return None
        return crash_of(self._log).line or "killed without a message"

    def _download_weights(self) -> None:
        for data in self.spec.model_data:
            try:
                download(data, self._ml_root, self.spec.region)
            except ModelDataError as error:
                raise LaunchFailed(
                    'Failed to download model data for container "container_1" from URL: '
                    f'"{data.uri}". Please ensure that there is an object located at the URL and '
                    "that the role passed to CreateModel has permissions to download it. "
                    f"({error})"
                ) from error

    def _environment(self) -> dict[str, str]:
        """The model's environment as this machine can run it; every change is logged."""
        given = dict(self.spec.environment)
        if MODEL not in given and HUB_MODEL in given and not self.spec.model_data:
            given[MODEL] = given[HUB_MODEL]
        machine = this_machine()
        reason = cannot_run(given, weight_bytes(self._ml_root), machine)
        reason = reason or only_in_image(self.spec, self._ml_root)
        if reason:
            given = self._stand_in_environment(given, reason)
        environment, notes = for_cpu(given, machine, self._compiles(given))
        self.not_applied = not_applied(self.spec.environment, environment)
        self._write(*notes)
        environment.setdefault(LOG_INTERVAL_VARIABLE, "1")
        if self.spec.plain:
            environment[WARM_MODE_VARIABLE] = OFF  # AWS's image restores nothing
        return environment

    def _compiles(self, given: Mapping[str, str]) -> bool:
        """Whether the engine compiles the model, as on a GPU. On a CPU that takes a minute, so only
        to collect the compiled artifacts, and where collected ones are next to the weights."""
        if self.spec.plain:
            return False
        collects = given.get(WARM_MODE_VARIABLE) == COLLECT
        return collects or any(self._ml_root.glob(f"model/{WARM_FOLDER}/*.json"))

    def _stand_in_environment(self, given: dict[str, str], reason: str) -> dict[str, str]:
        replaced = stand_in_for(given, catalog().targets[TINY])
        self.stand_in = TINY
        self._ml_root = self._folder / "stand-in"
        mount_tiny(self._ml_root, replaced.drafter)
        self._write(
            f"{TINY} is the stand-in for {replaced.environment[SERVED_NAME]}, "
            f"which this machine cannot run: {reason}",
            *replaced.notes,
        )
        return replaced.environment

    def _start_engine(self, environment: dict[str, str]) -> None:
        if self.other_engine:
            self._write(f"the image has vLLM {self.spec.vllm}; here it is {self.other_engine}")
        try:
            launch(self.spec, self.id, environment, self._ml_root, self._log, self._record)
        except PeagleError as error:
            raise LaunchFailed(str(error)) from error

    def _record(self, process: EngineProcess) -> None:
        """Register the engine before it begins; after ``end`` it never begins."""
        state.register_engine(process)
        self.process, self.started_at = process, time.time()
        if self._ended.is_set():
            raise LaunchFailed("The endpoint was deleted during its creation.")

    def _wait_until_healthy(self) -> None:
        assert self.process is not None
        until = time.monotonic() + self.spec.startup_seconds
        while not is_healthy(self.process.port):
            ended = self.end_reason()
            if ended:
                raise LaunchFailed(f"{self._not_healthy()} The engine exited: {ended}")
            if time.monotonic() > until or self._ended.is_set():
                raise LaunchFailed(self._not_healthy())
            self._ended.wait(_POLL_SECONDS)

    def _not_healthy(self) -> str:
        return (
            f"The primary container for production variant {self.spec.variant} did not pass the "
            "ping health check. Please check CloudWatch logs for this endpoint."
        )

    def _write(self, *lines: str) -> None:
        with self._log.open("a", encoding="utf-8") as stream:
            stream.writelines(f"sandbox: {line}\n" for line in lines)
