"""One engine behind an endpoint, from the download of its weights to its end."""

from __future__ import annotations

import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from toolkit import warm
from toolkit.errors import PeagleError
from toolkit.local.cpu import cannot_run, for_cpu
from toolkit.local.crash import crash_reason
from toolkit.local.machine import this_machine
from toolkit.local.process import (
    EngineProcess,
    is_alive,
    is_healthy,
    stop_engine,
)
from toolkit.sandbox import state
from toolkit.sandbox.bundled import catalog, engine_version
from toolkit.sandbox.hosting.baked import only_in_image
from toolkit.sandbox.hosting.engine_log import LogTail
from toolkit.sandbox.hosting.launching import launcher
from toolkit.sandbox.hosting.model_data import NoModelData, download, weight_bytes
from toolkit.sandbox.hosting.order import Order
from toolkit.sandbox.hosting.stand_in import stand_in_for
from toolkit.sandbox.hosting.tiny import TINY, mount_tiny

DRAIN_SECONDS = 60.0
"""How long an engine that was replaced may still answer: InvokeEndpoint's own limit."""

_POLL_SECONDS = 0.1


class DeploymentFailed(Exception):
    """The endpoint's FailureReason."""


class Deployment:
    """One engine. ``start`` and ``end`` may run in different threads, ``end`` at any time."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.instance = f"i-{secrets.token_hex(9)[:17]}"
        self.process: EngineProcess | None = None
        self.stand_in: str | None = None
        self.started_at = time.time()
        self._folder = state.endpoints_folder() / order.region / order.endpoint / self.instance
        self._ml_root = self._folder / "ml"
        self._log = self._folder / "engine.log"
        stream = f"{order.variant}/{self.instance}"
        self._tail = LogTail(self._log, order.region, order.endpoint, stream)
        self._ended = threading.Event()
        self._answers = 0
        self._answers_changed = threading.Condition()

    @property
    def other_engine(self) -> str | None:
        """The version of vLLM that runs here, when the image names another."""
        here = engine_version()
        return None if self.order.vllm in (None, here) else here

    def start(self, on_chosen: Callable[[Deployment], object]) -> None:
        """Return when the engine answers /ping. Raises DeploymentFailed, with nothing left."""
        try:
            self._tail.start()
            self._say(*self.order.remarks)
            self._bring_model_data()
            environment = self._environment()
            on_chosen(self)
            self._start_engine(environment)
            self._wait_until_healthy()
        except DeploymentFailed:
            self.end()
            raise

    def end(self) -> None:
        """End the engine and forget its weights; return when nothing is left. May be repeated."""
        self._ended.set()
        if self.process:
            stop_engine(self.process, state.ENGINE_GRACE_SECONDS)
            state.forget_engine(self.process)
        self._tail.end()
        shutil.rmtree(self._folder, ignore_errors=True)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Say that an invocation is being answered."""
        with self._answers_changed:
            self._answers += 1
        try:
            yield
        finally:
            with self._answers_changed:
                self._answers -= 1
                self._answers_changed.notify_all()

    def drain(self) -> None:
        """Wait until the invocations that are being answered have their answers."""
        with self._answers_changed:
            self._answers_changed.wait_for(lambda: self._answers == 0, DRAIN_SECONDS)

    def why_it_ended(self) -> str | None:
        """The deciding line of the log if the engine has ended; ``None`` while it lives."""
        if self.process and is_alive(self.process):
            return None
        return crash_reason(self._log) or "it was killed"

    def _bring_model_data(self) -> None:
        for data in self.order.model_data:
            try:
                download(data, self._ml_root, self.order.region)
            except NoModelData as error:
                raise DeploymentFailed(
                    'Failed to download model data for container "container_1" from URL: '
                    f'"{data.uri}". Please ensure that there is an object located at the URL and '
                    "that the role passed to CreateModel has permissions to download it. "
                    f"({error})"
                ) from error

    def _environment(self) -> dict[str, str]:
        """The model's environment as this machine can run it; says what it changes."""
        given = dict(self.order.environment)
        if "SM_VLLM_MODEL" not in given and "HF_MODEL_ID" in given and not self.order.model_data:
            given["SM_VLLM_MODEL"] = given["HF_MODEL_ID"]
        machine = this_machine()
        reason = cannot_run(given, weight_bytes(self._ml_root), machine)
        reason = reason or only_in_image(self.order, self._ml_root, state.read_engine_kind())
        if reason:
            given = self._stand_in_environment(given, reason)
        environment, notes = for_cpu(given, machine, self._compiles(given))
        self._say(*notes)
        return environment

    def _compiles(self, given: Mapping[str, str]) -> bool:
        """Whether the engine compiles as on a GPU. It takes a minute on a CPU, so it does only to
        collect what it compiles, and where something collected lies beside the weights."""
        collects = given.get(warm.MODE_VARIABLE) == warm.COLLECT
        return collects or any(self._ml_root.glob(f"model/{warm.FOLDER}/*.json"))

    def _stand_in_environment(self, given: dict[str, str], reason: str) -> dict[str, str]:
        replaced = stand_in_for(given, catalog().targets[TINY])
        self.stand_in = TINY
        self._ml_root = self._folder / "stand-in"
        mount_tiny(self._ml_root, replaced.drafter)
        self._say(
            f"{TINY} stands in for {replaced.environment['SM_VLLM_SERVED_MODEL_NAME']}, "
            f"which this machine cannot run: {reason}",
            *replaced.notes,
        )
        return replaced.environment

    def _start_engine(self, environment: dict[str, str]) -> None:
        if self.other_engine:
            self._say(f"the image has vLLM {self.order.vllm}; here it is vLLM {self.other_engine}")
        try:
            launch = launcher(state.read_engine_kind())
            launch(self.order, self.instance, environment, self._ml_root, self._log, self._record)
        except PeagleError as error:
            raise DeploymentFailed(str(error)) from error

    def _record(self, process: EngineProcess) -> None:
        """Before the engine begins. If we were ended meanwhile it never does."""
        state.register_engine(process)
        self.process, self.started_at = process, time.time()
        if self._ended.is_set():
            raise DeploymentFailed("The endpoint was deleted while it was created.")

    def _wait_until_healthy(self) -> None:
        assert self.process is not None
        until = time.monotonic() + self.order.startup_seconds
        while not is_healthy(self.process.port):
            ended = self.why_it_ended()
            if ended:
                raise DeploymentFailed(f"{self._not_healthy()} The engine ended: {ended}")
            if time.monotonic() > until or self._ended.is_set():
                raise DeploymentFailed(self._not_healthy())
            time.sleep(_POLL_SECONDS)

    def _not_healthy(self) -> str:
        return (
            f"The primary container for production variant {self.order.variant} did not pass the "
            "ping health check. Please check CloudWatch logs for this endpoint."
        )

    def _say(self, *lines: str) -> None:
        with self._log.open("a", encoding="utf-8") as stream:
            stream.writelines(f"sandbox: {line}\n" for line in lines)
