"""Run a plan on this machine, prove it, send it requests, read its log, and stop it again."""

from __future__ import annotations

import http.client
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from peagle import proof
from peagle.engine import state as records
from peagle.engine.gpus import Gpu
from peagle.engine.logs import crash_error, crash_fix, last_line
from peagle.engine.process import (
    NO_RESPONSE,
    EngineProcess,
    drain_engine,
    free_ports,
    is_alive,
    is_healthy,
    is_port_free,
    response,
    stop_engine,
)
from peagle.engine.runner import AS_PROCESS, LocalRunner
from peagle.engine.state import LocalEngine, local_engines
from peagle.engine_log import log_text
from peagle.errors import EngineError, EngineFailed, Fix, NotProved, UserError, fixed_by
from peagle.images.docker import docker_error
from peagle.parallel import ask_parallel
from peagle.planning.plan import Plan
from peagle.protocol import (
    Counters,
    Piece,
    parse_counters,
    parse_piece,
    parse_response,
    pieces_in,
    request_body,
)
from peagle.store import locked
from peagle.vllm.defaults import caches_prefixes
from peagle.vllm.environment import settings_in
from peagle_serve.contract import (
    ATTRIBUTES_HEADER,
    COUNTERS_ATTRIBUTE,
    DRAIN_SECONDS,
    DRAIN_VARIABLE,
)

STOP_SECONDS = 10.0
"""How long an engine may take to end after SIGTERM."""

_POLL_SECONDS = 0.05

StepProgress = Callable[[str, str], object]
"""Called with the current step (``starting``, ``proving``) and the last line of the log."""


def start_local(
    plan: Plan,
    port: int | None = None,
    progress: StepProgress = lambda step, line: None,
    runner: LocalRunner = AS_PROCESS,
) -> LocalEngine:
    """Run ``plan`` on this machine, and prove it; an engine that already runs is returned. After an
    error it is stopped and its log kept. Raises Refused, EngineError and NotProved."""
    return start_copies(plan, 1, port, progress, runner)[0]


def start_copies(
    plan: Plan,
    copies: int,
    port: int | None = None,
    progress: StepProgress = lambda step, line: None,
    runner: LocalRunner = AS_PROCESS,
) -> tuple[LocalEngine, ...]:
    """Run so many engines of ``plan`` at once, and prove each; several are ``NAME-1``, ``NAME-2``,
    on GPUs of their own and on the ports from ``port``. Those that already run are returned too.
    After an error all that were started are stopped. Raises as ``start_local``."""
    environment, notes = runner.local_environment(plan)
    names = [plan.name] if copies == 1 else [f"{plan.name}-{n + 1}" for n in range(copies)]
    ports = dict(zip(names, range(port, port + copies) if port else [None] * copies, strict=True))
    template = LocalEngine(
        name=plan.name,
        pair=plan.pair,
        served_as=plan.target.id,
        vllm=plan.runtime.vllm,
        environment=environment,
        notes=notes,
        process=EngineProcess(0, 0, 0, ""),
        started_at=0.0,
        image=runner.image.id if runner.image else None,  # another build is another image
        chat=plan.proof.chat,
        copy_of=plan.name if copies > 1 else "",
    )
    engines: dict[str, LocalEngine] = {}
    started: list[LocalEngine] = []
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(exclusive(name, "local up"))
            if running := _find_running(replace(template, name=name), ports[name]):
                engines[name] = running
        missing = [name for name in names if name not in engines]
        chosen = zip(
            missing, runner.choose_gpus(plan, len(missing)), free_ports(len(missing)), strict=True
        )
        try:
            for name, gpus, free in chosen:
                engine = replace(template, name=name, gpus=tuple(gpu.uuid for gpu in gpus))
                _start(plan, engine, ports[name] or free, runner, gpus, started)
            for engine in started:
                _wait(engine, plan.startup_timeout_seconds, progress)
            proofs = [partial(_prove, plan, engine, progress) for engine in started]
            for engine in ask_parallel(proofs, 2 * proof.TURN_SECONDS):
                engines[engine.name] = engine
                records.write(engine)
        except BaseException:  # an interrupt may come as soon as an engine is recorded
            for engine in started:
                end_engine(engine)
            raise
    return tuple(engines[name] for name in names)


@contextmanager
def running_engine(
    plan: Plan, progress: StepProgress, runner: LocalRunner
) -> Iterator[LocalEngine]:
    """The engine of ``plan`` while the block runs. One of this name, which a killed run has left,
    is stopped before. The log of one that fails is kept. Raises as ``start_local``."""
    if plan.name in records.local_engine_names():
        stop_local(plan.name, now=True)
    engine = start_local(plan, progress=progress, runner=runner)
    try:
        yield engine
    except EngineError:
        end_engine(engine)
        raise
    except BaseException:
        stop_local(plan.name, now=True)
        raise
    stop_local(plan.name, now=True)


def _find_running(engine: LocalEngine, port: int | None) -> LocalEngine | None:
    """The engine that runs as ``engine`` describes; stops what a failed start has left running.
    Raises UserError for another plan or port, and for a port in use."""
    running = records.read_local_engine(engine.name)
    if running and running.state == "ready":
        is_same = running.environment == engine.environment and running.image == engine.image
        if is_same and port in (None, running.process.port):
            return running
        raise UserError(
            f"{running.name} is already running with another plan or port",
            Fix("stop it first", ("peagle", "local", "down", running.name)),
            code="already-running",
        )
    if running:
        stop_engine(running.process, STOP_SECONDS)
    if port is not None and not is_port_free(port):
        fix = "choose another --port, or omit it to use any free port"
        raise UserError(f"port {port} is in use", fix, code="port-in-use")
    return None


def _start(
    plan: Plan,
    engine: LocalEngine,
    port: int,
    runner: LocalRunner,
    gpus: Sequence[Gpu],
    started: list[LocalEngine],
) -> None:
    """Start the process or container of ``engine``, which is recorded and ``started`` before."""

    def record(process: EngineProcess) -> None:
        started.append(replace(engine, process=process, started_at=time.time()))
        records.write(started[-1])

    log = records.log_of(engine.name)
    log.touch(mode=0o600)
    log.write_text("".join(f"local: {note}\n" for note in engine.notes), encoding="utf-8")
    named = plan.model_copy(update={"name": engine.name})
    runner.start(named, engine.environment, port, log, record, gpus)


def end_engine(engine: LocalEngine) -> None:
    """End an engine, and forget it."""
    stop_engine(engine.process, STOP_SECONDS)
    records.remove_record(engine.name)


def stop_local(name: str, now: bool = False) -> LocalEngine | None:
    """Stop the engine ``name`` and remove its log and state; ``None`` if it did not run. Running
    requests may finish, unless ``now``. Raises NotFound."""
    if name not in records.local_engine_names():
        raise records.unknown_engine(name)
    engine = records.read_local_engine(name)
    if engine:
        if engine.ready and not now:
            setting = engine.environment.get(DRAIN_VARIABLE, "").strip()
            limit = float(setting) if setting.isdecimal() else DRAIN_SECONDS
            drain_engine(engine.process, limit + 2 * STOP_SECONDS)
        stop_engine(engine.process, STOP_SECONDS)
    shutil.rmtree(records.locate_folder(name), ignore_errors=True)
    return engine


@contextmanager
def exclusive(name: str, command: str) -> Iterator[None]:
    """Run only one ``command`` for the engine ``name`` at a time, else raise UserError."""
    lock = records.locate_folder(name) / f"{command.replace(' ', '-')}.lock"
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(lock, wait=False))
        except BlockingIOError:
            message = f"another `peagle {command}` of {name} is running"
            fix = "wait until it ends, or choose another --name"
            raise UserError(message, fix, code="already-running") from None
        yield


def _wait(engine: LocalEngine, seconds: float, progress: StepProgress) -> None:
    """Return when the engine is healthy. Raises EngineError as soon as it has ended."""
    log = Path(engine.process.log)
    until = time.monotonic() + seconds
    while not is_healthy(engine.process.port):
        if not is_alive(engine.process):
            if records.read_local_engine(engine.name) is None:
                message = f"{engine.name} was stopped during startup"
                raise EngineError(message, "start it again", "startup-stopped")
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            messages = [line for line in lines if line.startswith("docker: ")]
            if engine.process.container and messages:
                raise docker_error("starting the container", messages)
            raise crash_error(log)
        if time.monotonic() > until:
            message = f"the engine is not healthy after {seconds:.0f} s"
            raise EngineError(message, f"read the log: {log}", "startup-timeout")
        progress("starting", last_line(log))
        time.sleep(_POLL_SECONDS)


def _prove(plan: Plan, engine: LocalEngine, progress: StepProgress) -> LocalEngine:
    port = engine.process.port
    settings: dict[str, Any] = {"chat": plan.proof.chat, "max_tokens": plan.proof.max_tokens}

    def ask_engine(body: dict[str, Any]) -> dict[str, Any]:
        progress("proving", "")
        return ask(port, body)

    if plan.speculation is None:
        answer = ask_engine(request_body(plan.proof.prompts[0], **settings))
        if not parse_piece(answer).written:
            fix = f"read the log: {engine.process.log}"
            raise NotProved("the engine returned an empty response", fix, code="empty-answer")
        return replace(engine, ready=True)
    measured = proof.prove(
        ask_engine,
        partial(counters, port),
        prompts=plan.proof.prompts,
        floor=plan.speculation.acceptance_floor,
        two_turns=caches_prefixes(settings_in(engine.environment)),
        **settings,
    )
    judged = replace(measured, floor_source=plan.speculation.acceptance_floor_source)
    proof.require_passed(judged, proof.pair_in_catalogue(plan.target, plan.drafter))
    return replace(
        engine,
        ready=True,
        acceptance_length=measured.acceptance_length,
        drafts=measured.drafts,
        second_turn=measured.second_turn,
    )


_REQUEST_SECONDS = 600.0
_CHUNK_BYTES = 65_536
_JSON = {"Content-Type": "application/json"}


def ask(port: int, body: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request body for ``/invocations``. Raises EngineError."""
    with _reply(port, json.dumps(body).encode(), _JSON) as reply:
        document = parse_response(_content(reply))
        parse_piece(document)
        return document


def stream(port: int, body: dict[str, Any]) -> Iterator[Piece]:
    """The answer to a streaming request, in pieces. Raises EngineError for an error or an early
    end."""
    with _reply(port, json.dumps(body).encode(), _JSON) as reply:
        if reply.status != http.HTTPStatus.OK:
            _content(reply)
        yield from pieces_in(iter(lambda: reply.read1(_CHUNK_BYTES), b""))


def counters(port: int) -> Counters:
    """The engine's speculation counters. Raises EngineError."""
    with _reply(port, b"", {ATTRIBUTES_HEADER: COUNTERS_ATTRIBUTE}) as reply:
        return parse_counters(parse_response(_content(reply)))


def exchange(port: int, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    """Status and body of the answer. Raises EngineError without an answer."""
    with _reply(port, body, headers) as reply:
        return reply.status, reply.read()


def _content(reply: http.client.HTTPResponse) -> bytes:
    content = reply.read()
    if reply.status != http.HTTPStatus.OK:
        answer = content[:300].decode("utf-8", errors="replace")
        code = "engine-rejected" if 400 <= reply.status < 500 else EngineFailed.code
        raise EngineError(f"the engine rejected a request ({reply.status}): {answer}", code=code)
    return content


@contextmanager
def _reply(port: int, body: bytes, headers: dict[str, str]) -> Iterator[http.client.HTTPResponse]:
    """The open response. Raises EngineError when there is none, or when it is cut off."""
    with fixed_by(lambda: _read_the_log(port)):
        try:
            with response(port, "/invocations", _REQUEST_SECONDS, body, headers) as reply:
                yield reply
        except NO_RESPONSE as error:
            message = f"the engine on port {port} does not respond: {error}"
            raise EngineError(message, code="no-answer") from error


def _read_the_log(port: int) -> Fix:
    """What the crash of the newest engine on ``port`` needs, else the command that prints its log;
    empty without an engine."""
    engines = [engine for engine in local_engines() if engine.process.port == port]
    if not engines:
        return Fix("")
    last = max(engines, key=lambda engine: engine.started_at)
    return crash_fix(last.process.log, Fix("read the log", ("peagle", "local", "logs", last.name)))


def local_log(name: str, follow: bool = False) -> Iterator[str]:
    """The engine's log, line by line; with ``follow`` until it ends. Raises NotFound."""
    log = records.log_of(name)
    if name not in records.local_engine_names() or not log.is_file():
        raise records.unknown_engine(name)
    engine = records.read_local_engine(name) if follow else None
    return map(log_text, _lines(log, engine.process if engine else None))


def _lines(log: Path, follow: EngineProcess | None) -> Iterator[str]:
    """Each line as soon as it is complete; with ``follow`` until that process has ended."""
    rest = b""
    with log.open("rb") as stream:
        while True:
            has_ended = follow is None or not is_alive(follow)
            while chunk := stream.read(_CHUNK_BYTES):
                *complete, rest = (rest + chunk).split(b"\n")
                yield from (line.decode("utf-8", errors="replace") for line in complete)
            if has_ended:
                break
            time.sleep(_POLL_SECONDS)
    if rest:
        yield rest.decode("utf-8", errors="replace")
