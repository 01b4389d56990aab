"""An engine's log file in CloudWatch Logs, line by line, as it grows.

One engine behind an endpoint, from the download of its weights to its end.
"""

from __future__ import annotations

import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from moto.logs.models import logs_backends

from peagle.engine.cpu import cannot_run, for_cpu
from peagle.engine.crash import crash_reason
from peagle.engine.installed import this_machine
from peagle.engine.process import EngineProcess, is_alive, is_healthy, stop_engine
from peagle.errors import PeagleError
from peagle.sandbox import state
from peagle.sandbox.client import ACCOUNT
from peagle.sandbox.hosting.launch import (
    TINY,
    NoModelData,
    download,
    launcher,
    mount_tiny,
    only_in_image,
    weight_bytes,
)
from peagle.sandbox.hosting.spec import Order, stand_in_for
from peagle.sandbox.state import catalog, engine_version
from peagle_serve.contract import COLLECT, DRAIN_SECONDS, WARM_FOLDER, WARM_MODE_VARIABLE

_POLL_SECONDS = 0.2
_LONGEST_EVENT = 256 * 1024 - 26
"""Bytes; the limit of PutLogEvents less its own 26."""


def group_of(endpoint: str) -> str:
    """The log group that SageMaker gives an endpoint."""
    return f"/aws/sagemaker/Endpoints/{endpoint}"


class LogTail:
    """A thread that copies the lines of a file into a log stream until it is told to end."""

    def __init__(self, file: Path, region: str, endpoint: str, stream: str) -> None:
        self._file = file
        self._group = group_of(endpoint)
        self._stream = stream
        self._backend = logs_backends[ACCOUNT][region]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"log {endpoint}", daemon=True)

    def start(self) -> None:
        """Begin, with the file's first line. Makes the group and the stream."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.touch()
        self._backend.ensure_log_group(self._group)
        self._backend.ensure_log_stream(self._group, self._stream)
        self._thread.start()

    def end(self) -> None:
        """Copy what is still to come and end."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        rest = b""
        with self._file.open("rb") as stream:
            while not self._ended.wait(_POLL_SECONDS):
                rest = self._copy(stream, rest)
            self._put((self._copy(stream, rest)).splitlines())

    def _copy(self, stream: BufferedReader, rest: bytes) -> bytes:
        """Copy the whole lines that are there; give back the beginning of the next one."""
        *lines, rest = (rest + stream.read()).split(b"\n")
        self._put(lines)
        return rest

    def _put(self, lines: list[bytes]) -> None:
        now = int(time.time() * 1000)
        texts = (line[:_LONGEST_EVENT].decode("utf-8", "replace").rstrip() for line in lines)
        events = [{"timestamp": now, "message": text} for text in texts if text]
        if events:
            self._backend.ensure_log_group(self._group)
            self._backend.ensure_log_stream(self._group, self._stream)
            self._backend.put_log_events(self._group, self._stream, events)


_POLL_SECONDS_DEPLOYMENT = 0.1


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
        collects = given.get(WARM_MODE_VARIABLE) == COLLECT
        return collects or any(self._ml_root.glob(f"model/{WARM_FOLDER}/*.json"))

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
            time.sleep(_POLL_SECONDS_DEPLOYMENT)

    def _not_healthy(self) -> str:
        return (
            f"The primary container for production variant {self.order.variant} did not pass the "
            "ping health check. Please check CloudWatch logs for this endpoint."
        )

    def _say(self, *lines: str) -> None:
        with self._log.open("a", encoding="utf-8") as stream:
            stream.writelines(f"sandbox: {line}\n" for line in lines)
