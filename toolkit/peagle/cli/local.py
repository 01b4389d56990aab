"""``peagle local up --engine docker``: which image, built now if asked for, or a compose file.

``peagle local``: run a plan on this machine, without AWS.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from peagle.cli.account import chosen_account
from peagle.cli.context import PeagleCommand
from peagle.cli.image import build_here
from peagle.cli.image_push import Request, findings_here
from peagle.cli.options import (
    build_command,
    command_catalog,
    names_own_image,
    plan_options,
    refuse_errors,
)
from peagle.cli.output.console import json_option, print_json, say
from peagle.cli.output.files import write_file
from peagle.cli.output.progress import StatusLine
from peagle.engine import LocalEngine, listing
from peagle.engine import down as end
from peagle.engine import state as records
from peagle.engine import up as run
from peagle.engine.container import compose_file, find_image
from peagle.engine.process import free_port, is_healthy
from peagle.engine.runner import DockerRunner, ProcessRunner
from peagle.engine.state import warm_start_of
from peagle.errors import DockerMissing, NotFound, UserError
from peagle.images import Docker
from peagle.images.docker import compose_command
from peagle.images.inspect import unchecked_image
from peagle.planning import Plan
from peagle.protocol import log_text, request_body
from peagle.render.image import RuntimeKind


def docker_runner(
    plan: Plan, gpus: bool, build_first: bool, base: str | None = None
) -> DockerRunner:
    """Docker with the image for the plan.

    That is ``--image`` where it was given; else the newest that fits; with ``build_first`` a new
    one. Raises DockerMissing, and NotFound when there is no image.
    """
    docker = Docker()
    docker.check()
    runtime: RuntimeKind = "gpu" if gpus else "cpu"
    if build_first:
        account = chosen_account(None, False, os.environ)  # for a base in ECR
        request = Request(plan, command_catalog(), runtime, base=base)
        return DockerRunner(docker, build_here(docker, request, account).image, gpus)
    ctx = click.get_current_context()
    command = build_command(ctx, "--runtime", runtime)
    named = plan.runtime.image if names_own_image(plan) else None
    found = find_image(docker, plan, runtime, named, command)
    if found is None:
        raise NotFound(
            f"there is no image of {plan.pair} for the {runtime} on this machine",
            f"add --build, or: {command}" if "build_first" in ctx.params else command,
        )
    return DockerRunner(docker, found, gpus)


def compose_runner(
    plan: Plan, gpus: bool, build_first: bool, base: str | None = None
) -> DockerRunner:
    """The same for a compose file, which starts nothing: an image that was named with ``--image``
    may be somewhere else, and Docker too."""
    try:
        return docker_runner(plan, gpus, build_first, base)
    except (DockerMissing, NotFound) as missing:
        if build_first or not names_own_image(plan):
            raise
        named = plan.runtime.image
        say(f"Nobody looked whether {named} is for {plan.pair}: {missing.message}.")
        return DockerRunner(Docker(), unchecked_image(named), gpus)


def write_compose(runner: DockerRunner, plan: Plan, port: int | None, file: Path) -> int:
    """Write the compose file to ``file``, or to stdout for ``-``; the port that it publishes."""
    environment, _ = runner.runnable(plan)
    chosen = port or free_port()
    # By name: the file is for machines, too, that get the image from a registry.
    container = replace(runner.container(plan, environment, chosen), image=runner.built.name)
    text = compose_file(container)
    if str(file) == "-":
        click.echo(text, nl=False)
    else:
        write_file(file, text.encode())
    return chosen


_FOLLOW_SECONDS = 0.2
_CHUNK_BYTES = 64 * 1024


@click.group(epilog="Example: peagle local up tiny && peagle local down peagle-tiny")
def local() -> None:
    """Run a plan on this machine, without AWS.

    The engine is vLLM on the CPU, as `peagle engine install` brings it; or, with --engine docker,
    the very image that SageMaker runs.
    """


@local.command(cls=PeagleCommand, epilog="Example: peagle local up tiny --port 8000")
@plan_options
@click.option(
    "--port", type=click.IntRange(1, 65535), help="Port to listen on.  [default: a free one]"
)
@click.option(
    "--engine",
    "engine_kind",
    type=click.Choice(["process", "docker"]),
    default="process",
    show_default=True,
    help="As a process of this machine, or in a container.",
)
@click.option("--gpus", is_flag=True, help="Docker: the image for GPUs, with all of this machine.")
@click.option("--compile", "compiled", is_flag=True, help="On a CPU: compile the model, too.")
@click.option("--build", "build_first", is_flag=True, help="Docker: build the image first.")
@click.option("--base", metavar="IMAGE", help="Docker, with --build: image to build on.")
@click.option(
    "--emit-compose",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Docker: write the compose file that does the same (- for stdout); start nothing.",
)
@json_option
def up(
    plan: Plan,
    port: int | None,
    engine_kind: str,
    gpus: bool,
    compiled: bool,
    build_first: bool,
    base: str | None,
    emit_compose: Path | None,
    as_json: bool,
) -> None:
    """Run PAIR or PLAN, and prove that it drafts.

    Returns when it answers; it goes on running until `peagle local down`. Doing it again changes
    nothing. Only this machine can reach it. On a CPU it runs without being compiled, unless
    --compile says so; what `peagle warm --local` kept then makes the start quick.
    """
    refuse_errors(findings_here(plan, engine_kind))
    runner = None
    if compiled and gpus:
        raise UserError("with --gpus the engine compiles anyway", "leave out --compile")
    if engine_kind == "docker":
        found = compose_runner if emit_compose else docker_runner
        runner = replace(found(plan, gpus, build_first, base), compiled=compiled)
    elif gpus or build_first or base or emit_compose:
        raise UserError("--gpus, --build, --base and --emit-compose are for containers",
                        "add --engine docker")  # fmt: skip
    if runner and emit_compose:
        return _tell_compose(emit_compose, write_compose(runner, plan, port, emit_compose), as_json)
    with StatusLine() as status:
        engine = run(plan, port, progress=status.show, runner=runner or ProcessRunner(compiled))
    if as_json:
        return print_json(document(engine))
    return _show_result(engine)


@local.command(cls=PeagleCommand, epilog="Example: peagle local down peagle-tiny")
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="End all of them.")
@click.option("--now", is_flag=True, help="Cut off requests that run.")
@json_option
def down(name: str | None, everything: bool, now: bool, as_json: bool) -> None:
    """End the engine NAME, and remove its log and state.

    Waits until requests that run are answered, a minute at most; new ones are refused meanwhile.
    """
    if everything == (name is not None):
        raise UserError("which one?", "give a NAME, or --all")
    chosen = records.names() if everything else (str(name),)
    ended = [one for one in chosen if _end(one, now)]
    if as_json:
        print_json({"ended": ended, "removed": list(chosen)})
        return
    for one in chosen:
        click.echo(f"{one} is down." if one in ended else f"{one} was not running; removed.")
    if not chosen:
        click.echo("Nothing is running.")


@local.command(cls=PeagleCommand, epilog="Example: peagle local logs peagle-tiny -f")
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is still to come.")
def logs(name: str, follow: bool) -> None:
    """Print the log of the engine NAME."""
    log = records.log_of(name)
    if name not in records.names() or not log.is_file():
        raise records.unknown_engine(name)
    for line in _lines(_chunks(log, name if follow else None)):
        click.echo(log_text(line))


@local.command("list", cls=PeagleCommand, epilog="Example: peagle local list --json")
@json_option
def list_(as_json: bool) -> None:
    """List the engines of this machine."""
    engines = listing()
    if as_json:
        print_json({"engines": [document(engine) for engine in engines]})
        return
    for engine in engines:
        accepted = engine.acceptance_length
        proof = f", acceptance length {accepted:.2f}" if accepted else ""
        where = ", in a container" if engine.image else ""
        click.echo(
            f"{engine.name}: {engine.pair}, {engine.state}, {_health(engine)}, "
            f"{engine.openai_base_url}{where}{proof}"
        )
    if not engines:
        say("Nothing is running (peagle local up PAIR).")


def document(engine: LocalEngine) -> dict[str, Any]:
    """The engine as one JSON document."""
    warm = warm_start_of(Path(engine.process.log))
    return {
        "name": engine.name,
        "state": engine.state,
        "healthy": is_healthy(engine.process.port),
        "engine": "docker" if engine.image else "process",
        "image": engine.image,
        "container": engine.process.container,
        "pair": engine.pair,
        "acceptance_length": engine.acceptance_length,
        "drafts": engine.drafts,
        "warm_start": warm.document() if warm else None,
        "openai_base_url": engine.openai_base_url,
        "served_as": engine.served_as,
        "vllm": engine.vllm,
        "pid": engine.process.pid,
        "port": engine.process.port,
        "log": engine.process.log,
        "notes": list(engine.notes),
        "started_at": engine.started_at,
    }


def _tell_compose(file: Path, port: int, as_json: bool) -> None:
    if as_json:
        print_json({"file": str(file), "port": port})
    elif str(file) != "-":
        say(f"{file} publishes port {port}: {compose_command(Docker())} --file {file} up")


def _end(name: str, now: bool) -> bool:
    """Whether the engine ran. Says for what is waited."""
    with StatusLine() as status:

        def waiting(seconds: float) -> None:
            status.show(f"{name} may finish what it answers, {seconds:.0f} s at most (--now: none)")

        return end(name, now, waiting) is not None


def _health(engine: LocalEngine) -> str:
    return "healthy" if is_healthy(engine.process.port) else "does not answer /ping"


def _show_result(engine: LocalEngine) -> None:
    if engine.acceptance_length is not None:
        click.echo(
            f"{engine.pair} drafts: acceptance length {engine.acceptance_length:.2f} over "
            f"{engine.drafts} drafts."
        )
    else:
        click.echo(f"{engine.pair} answers.")
    if warm := warm_start_of(Path(engine.process.log)):
        click.echo(warm.text)
    if engine.notes:
        click.echo(f"On a CPU {len(engine.notes)} settings differ: the log begins with them.")
    click.echo(f"OpenAI base URL:  {engine.openai_base_url}")
    click.echo(f"Ask it:           {_curl(engine)}")
    click.echo(f"Its log:          peagle local logs {engine.name} -f")
    click.echo(f"End it:           peagle local down {engine.name}")


def _curl(engine: LocalEngine) -> str:
    """A command that streams an answer, quoted for a shell."""
    body = {"model": engine.served_as, **request_body("Hello!", chat=True, max_tokens=64)}
    body["stream"] = True
    return shlex.join(
        ["curl", "-N", f"{engine.openai_base_url}/chat/completions",
         "-H", "Content-Type: application/json", "-d", json.dumps(body)]
    )  # fmt: skip


def _chunks(log: Path, follow: str | None) -> Iterator[bytes]:
    """The log's bytes; with ``follow``, also what the engine of that name still writes."""
    with log.open("rb") as stream:
        while True:
            alive = follow is not None and _is_running(follow)
            while chunk := stream.read(_CHUNK_BYTES):
                yield chunk
            if not alive:
                return
            time.sleep(_FOLLOW_SECONDS)


def _lines(chunks: Iterator[bytes]) -> Iterator[str]:
    """The text line by line, each as soon as it is whole."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line.decode("utf-8", errors="replace") for line in whole)
    if rest:
        yield rest.decode("utf-8", errors="replace")


def _is_running(name: str) -> bool:
    engine = records.read(name)
    return engine is not None and engine.state != "dead"
