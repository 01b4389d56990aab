"""The engines behind an endpoint: one for each instance of each variant, or for each copy."""

from __future__ import annotations

import secrets
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from peagle.engine.logs import read_crash
from peagle.engine.machine import this_machine
from peagle.engine.process import EngineProcess, is_alive, is_healthy, stop_engine
from peagle.engine.runner import adapt_to_cpu, cannot_run
from peagle.engine_log import LOG_INTERVAL_VARIABLE
from peagle.errors import PeagleError
from peagle.protocol import log_group
from peagle.sandbox import state
from peagle.sandbox.launch import (
    TINY,
    LaunchFailed,
    LaunchSpec,
    download,
    launch,
    mount_tiny,
    not_applied,
    only_in_image,
    stand_in_for,
)
from peagle.sandbox.observability import LogTail, stock_line
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


class Draining(Exception):
    """The engine takes no further request: another one serves instead."""


class EngineInstance:
    """One engine, from the download of its weights to its end. ``start`` and ``end`` may run in
    different threads, ``end`` at any time."""

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
        group = log_group(spec.component or spec.endpoint, copies=bool(spec.component))
        written = stock_line if spec.plain else str
        self._tail = LogTail(self._log, spec.region, group, f"{spec.variant}/{self.id}", written)
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
        """Return when the engine answers /ping. ``on_chosen`` is called when it is known what is
        launched. Raises LaunchFailed; then nothing is left running."""
        try:
            self._tail.start()
            for data in self.spec.model_data:
                download(data, self._ml_root, self.spec.region)
            environment = self._choose_environment()
            on_chosen(self)
            if self.other_engine:
                self._write(f"the image has vLLM {self.spec.vllm}; here it is {self.other_engine}")
            launch(self.spec, self.id, environment, self._ml_root, self._log, self._record)
            self._wait_until_healthy()
        except (PeagleError, LaunchFailed) as error:
            self.end()
            raise LaunchFailed(str(error)) from error

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
        return read_crash(self._log).line or "killed without a message"

    def _choose_environment(self) -> dict[str, str]:
        """The model's environment as this machine can run it; every change is logged."""
        environment = dict(self.spec.environment)
        if MODEL not in environment and HUB_MODEL in environment and not self.spec.model_data:
            environment[MODEL] = environment[HUB_MODEL]
        machine = this_machine()
        size = sum(file.stat().st_size for file in self._ml_root.rglob("*.safetensors"))
        reason = cannot_run(environment, size, machine) or only_in_image(self.spec, self._ml_root)
        if reason:
            environment, drafter = stand_in_for(environment, catalog().targets[TINY])
            self.stand_in = TINY
            self._ml_root = self._folder / "stand-in"
            mount_tiny(self._ml_root, drafter)
            served = environment[SERVED_NAME]
            replaced = f"{TINY} is the stand-in for {served}, which this machine cannot run"
            self._write(f"{replaced}: {reason}")
        # On a CPU a compilation takes a minute: only to collect the compiled artifacts, and where
        # collected ones are next to the weights.
        collects = environment.get(WARM_MODE_VARIABLE) == COLLECT
        collected = any(self._ml_root.glob(f"model/{WARM_FOLDER}/*.json"))
        compiles = not self.spec.plain and (collects or collected)
        environment, notes = adapt_to_cpu(environment, machine, compiles)
        self.not_applied = not_applied(self.spec.environment, environment)
        self._write(*notes, *(f"not applied: {argument}" for argument in self.not_applied))
        environment.setdefault(LOG_INTERVAL_VARIABLE, "1")
        if self.spec.plain:
            environment[WARM_MODE_VARIABLE] = OFF  # AWS's image restores nothing
        return environment

    def _record(self, process: EngineProcess) -> None:
        """Register the engine before it begins; after ``end`` it never begins."""
        state.register_engine(process)
        self.process, self.started_at = process, time.time()
        if self._ended.is_set():
            raise LaunchFailed("The endpoint was deleted during its creation.")

    def _wait_until_healthy(self) -> None:
        assert self.process is not None
        not_healthy = (
            f"The primary container for production variant {self.spec.variant} did not pass the "
            "ping health check. Please check CloudWatch logs for this endpoint."
        )
        until = time.monotonic() + self.spec.startup_seconds
        while not is_healthy(self.process.port):
            if reason := self.end_reason():
                raise LaunchFailed(f"{not_healthy} The engine exited: {reason}")
            if time.monotonic() > until or self._ended.is_set():
                raise LaunchFailed(not_healthy)
            self._ended.wait(_POLL_SECONDS)

    def _write(self, *lines: str) -> None:
        with self._log.open("a", encoding="utf-8") as stream:
            stream.writelines(f"sandbox: {line}\n" for line in lines)


OnChosen = Callable[[EngineInstance], object]


class Fleet:
    """The engines that serve together. ``specs`` has one specification for each variant."""

    def __init__(
        self, specs: Sequence[LaunchSpec], create: Callable[[LaunchSpec], EngineInstance]
    ) -> None:
        self.specs, self._create = tuple(specs), create
        self._lock = threading.Lock()
        self._instances = [create(spec) for spec in self.specs for _ in range(spec.count)]
        self._weights: Mapping[str, float] = {}
        self._served: Counter[str] = Counter()
        self._turn = 0

    @property
    def instances(self) -> tuple[EngineInstance, ...]:
        """The instances, those of the first variant first."""
        with self._lock:
            return tuple(self._instances)

    @property
    def variants(self) -> tuple[str, ...]:
        return tuple(spec.variant for spec in self.specs)

    def count(self, variant: str) -> int:
        """How many instances of ``variant`` run."""
        return sum(instance.spec.variant == variant for instance in self.instances)

    def start(self, on_chosen: OnChosen) -> None:
        """Start all engines at the same time; return when every one answers /ping. Raises the first
        LaunchFailed; then nothing is left running. Other errors are raised too."""
        self._start(self.instances, on_chosen)

    def resize(self, variant: str, count: int, on_chosen: OnChosen) -> None:
        """Start or end engines of ``variant`` until ``count`` of them run. Raises LaunchFailed;
        then the engines that ran before still do."""
        spec = next(spec for spec in self.specs if spec.variant == variant)
        running = [instance for instance in self.instances if instance.spec.variant == variant]
        added = [self._create(spec) for _ in range(count - len(running))]
        self._start(added, on_chosen)
        removed = running[count:]
        with self._lock:
            self._instances += added
            self._instances = [instance for instance in self._instances if instance not in removed]
        for instance in removed:
            instance.drain()
            instance.end()

    def end_reason(self) -> str | None:
        """Why the first engine ended, once all have; ``None`` while one runs."""
        reasons = [instance.end_reason() for instance in self.instances]
        return reasons[0] if reasons and all(reasons) else None

    def retire(self) -> None:
        """Let the engines answer what they have, then end them."""
        for instance in self.instances:
            instance.drain()
        self.end()

    def end(self) -> None:
        """End every engine; return when nothing is left. May be repeated."""
        _each(self.instances, lambda instance: instance.end())

    def choose(self, weights: Mapping[str, float], variant: str | None) -> EngineInstance:
        """The instance for the next request: of ``variant``, or shared among the variants by
        ``weights``; then the one with the fewest requests in progress, in turn. An engine that has
        ended is chosen only where no other one runs."""
        with self._lock:
            chosen = variant or self._share(weights)
            self._turn += 1
            candidates = [engine for engine in self._instances if engine.spec.variant == chosen]
            alive = [engine for engine in candidates if engine.process and is_alive(engine.process)]
            alive = alive or candidates
            turned = [alive[(self._turn + place) % len(alive)] for place in range(len(alive))]
            return min(turned, key=lambda engine: engine.in_progress)

    def _share(self, weights: Mapping[str, float]) -> str:
        """The variant for the next request that names none: the one that is behind its share."""
        if weights != self._weights:
            self._weights, self._served = dict(weights), Counter()
        names = [name for name in self.variants if weights.get(name)] or self.variants
        chosen = min(names, key=lambda name: (self._served[name] + 1) / (weights.get(name) or 1.0))
        self._served[chosen] += 1
        return chosen

    def _start(self, instances: Sequence[EngineInstance], on_chosen: OnChosen) -> None:
        try:
            _each(instances, lambda instance: instance.start(on_chosen))
        except BaseException:
            _each(instances, lambda instance: instance.end())
            raise


def _each(instances: Sequence[EngineInstance], do: Callable[[EngineInstance], object]) -> None:
    """Call ``do`` for all instances at the same time; raise the first error once all have ended. An
    engine that cannot start ends the others' waiting: none of them will serve."""
    errors: list[BaseException] = []

    def run(instance: EngineInstance) -> None:
        try:
            do(instance)
        except BaseException as error:
            errors.append(error)
            if isinstance(error, LaunchFailed):
                for other in instances:
                    other.give_up()

    threads = [threading.Thread(target=run, args=(engine,), daemon=True) for engine in instances]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
