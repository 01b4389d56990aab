"""Run a plan on this machine, prove that it speculates, and end it again."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from peagle import proof
from peagle.engine import client
from peagle.engine import state as records
from peagle.engine.crash import bare_line, crash_error
from peagle.engine.process import (
    EngineProcess,
    drain_engine,
    free_port,
    is_alive,
    is_healthy,
    is_port_free,
    stop_engine,
)
from peagle.engine.runner import ProcessRunner, Runner
from peagle.engine.state import LocalEngine
from peagle.errors import EngineError, NotProved, PeagleError, UserError
from peagle.images.docker import refusal
from peagle.planning.plan import Plan
from peagle.protocol import piece_of, request_body
from peagle.store import locked
from peagle_serve.contract import DRAIN_SECONDS, DRAIN_VARIABLE

STOP_SECONDS = 10.0
"""How long an engine may take to end by itself."""

_POLL_SECONDS = 0.1
_TAIL_BYTES = 4096

Progress = Callable[[str, str], object]
"""Called with what is going on (``starting``, ``proving``) and the log's last line."""


def up(
    plan: Plan,
    port: int | None = None,
    progress: Progress = lambda step, line: None,
    runner: Runner | None = None,
) -> LocalEngine:
    """Run ``plan`` on this machine; return when it answers and is proved to speculate.

    ``runner`` says as what: a process if it is not given, or a container. Does nothing when it
    already runs. ``port`` is chosen when not given. Whatever ends this,
    nothing runs that is not remembered; when it fails or is interrupted, the engine is ended and
    its log is kept.
    """
    runner = runner or ProcessRunner()
    environment, notes = runner.runnable(plan)
    with exclusive(plan.name, "local up"):
        running = records.read(plan.name)
        if running and is_alive(running.process) and running.ready:
            return _same(running, environment, port, runner)
        if running:
            stop_engine(running.process, STOP_SECONDS)
        chosen = _port(port)
        started = _start(runner, plan, environment, notes, chosen)
        try:
            _wait(started, plan.startup_timeout_seconds, progress)
            ready = _prove(plan, started, progress)
            records.write(ready)
        except BaseException:
            stop_engine(started.process, STOP_SECONDS)
            records.forget(plan.name)
            raise
    return ready


def down(
    name: str, now: bool = False, waiting: Callable[[float], object] = lambda seconds: None
) -> LocalEngine | None:
    """End the engine ``name`` and remove all that is kept of it. ``None`` if none ran.

    Running requests may finish, to a limit; ``waiting`` is called meanwhile with that limit in
    seconds. With ``now`` they are cut off. Raises NotFound when nothing of that name is here.
    """
    if name not in records.names():
        raise records.unknown_engine(name)
    engine = records.read(name)
    if engine:
        if engine.ready and not now:
            limit = drain_seconds(engine)
            drain_engine(engine.process, limit + 2 * STOP_SECONDS, lambda: waiting(limit))
        stop_engine(engine.process, STOP_SECONDS)
    shutil.rmtree(records.folder_of(name), ignore_errors=True)
    return engine


def drain_seconds(engine: LocalEngine) -> float:
    """How long the engine lets running requests finish."""
    said = engine.environment.get(DRAIN_VARIABLE, "").strip()
    return float(said) if said.isdecimal() else DRAIN_SECONDS


def last_line(log: Path) -> str:
    """The last line of the log that says something."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, 2) - _TAIL_BYTES))
            lines = stream.read().decode("utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return next((bare for line in reversed(lines) if (bare := bare_line(line))), "")


@contextmanager
def exclusive(name: str, command: str) -> Iterator[None]:
    """Only one ``command`` of a name at a time. The lock goes with the process that holds it.

    Raises UserError where another one holds it.
    """
    lock = records.folder_of(name) / f"{command.replace(' ', '-')}.lock"
    with ExitStack() as held:
        try:
            held.enter_context(locked(lock, wait=False))
        except BlockingIOError:
            raise UserError(
                f"another `peagle {command}` of {name} is running",
                "wait until it ends, or choose another --name",
                code="already-running",
            ) from None
        yield


def _same(
    running: LocalEngine, environment: dict[str, str], port: int | None, runner: Runner
) -> LocalEngine:
    if running.environment != environment or running.image != runner.image:
        raise UserError(
            f"{running.name} already runs, with another plan",
            f"end it with `peagle local down {running.name}`, or give --name",
        )
    if port not in (None, running.process.port):
        raise UserError(
            f"{running.name} already runs, on port {running.process.port}",
            f"end it with `peagle local down {running.name}`, or leave --port out",
        )
    return running


def _port(wanted: int | None) -> int:
    if wanted is None:
        return free_port()
    if not is_port_free(wanted):
        raise UserError(
            f"port {wanted} is taken", "give another --port, or leave it out for a free one"
        )
    return wanted


def _start(
    runner: Runner, plan: Plan, environment: dict[str, str], notes: tuple[str, ...], port: int
) -> LocalEngine:
    """The engine, begun and remembered. Its log begins with ``notes``."""
    log = records.log_of(plan.name)
    log.write_text("".join(f"local: {note}\n" for note in notes), encoding="utf-8")
    begun: list[LocalEngine] = []

    def remember(process: EngineProcess) -> None:
        engine = LocalEngine(
            name=plan.name,
            pair=plan.pair,
            served_as=plan.target.id,
            vllm=plan.runtime.vllm,
            environment=environment,
            notes=notes,
            process=process,
            started_at=time.time(),
            image=runner.image,
            chat=plan.proof.chat,
        )
        records.write(engine)
        begun.append(engine)

    runner.start(plan, environment, port, log, remember)
    return begun[0]


def _wait(engine: LocalEngine, seconds: float, progress: Progress) -> None:
    """Return when the engine answers. Raises EngineError as soon as it has ended."""
    log = Path(engine.process.log)
    until = time.monotonic() + seconds
    while not is_healthy(engine.process.port):
        if not is_alive(engine.process):
            raise _ended(engine)
        if time.monotonic() > until:
            raise EngineError(f"the engine did not answer within {seconds:.0f} s", f"see {log}")
        progress("starting", last_line(log))
        time.sleep(_POLL_SECONDS)


def _prove(plan: Plan, engine: LocalEngine, progress: Progress) -> LocalEngine:
    """The engine with what was measured. Raises NotProved."""
    port = engine.process.port

    def ask(body: dict[str, Any]) -> dict[str, Any]:
        progress("proving", "")
        return client.ask(port, body)

    if plan.speculation is None:
        answer = ask(
            request_body(
                plan.proof.prompts[0], chat=plan.proof.chat, max_tokens=plan.proof.max_tokens
            )
        )
        if not piece_of(answer).text:
            raise NotProved("the engine answers a prompt with nothing", f"see {engine.process.log}")
        return replace(engine, ready=True)
    seen = proof.prove(
        ask,
        lambda: client.counters(port),
        prompts=plan.proof.prompts,
        chat=plan.proof.chat,
        max_tokens=plan.proof.max_tokens,
        floor=plan.speculation.acceptance_floor,
    )
    proof.require(seen)
    return replace(engine, ready=True, acceptance_length=seen.acceptance_length, drafts=seen.drafts)


def _ended(engine: LocalEngine) -> PeagleError:
    if records.read(engine.name) is None:
        return EngineError(f"{engine.name} was stopped while it started", "start it again")
    if engine.process.container:
        lines = Path(engine.process.log).read_text(encoding="utf-8", errors="replace").splitlines()
        said = [line for line in lines if line.startswith("docker: ")]
        if said:
            return refusal("starting the container", said)
    return crash_error(engine.process.log)
