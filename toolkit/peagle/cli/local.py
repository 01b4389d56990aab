"""``peagle local``: run a plan on this machine, without AWS."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from peagle.aws.images import ImageRequest
from peagle.cli.context import PeagleCommand, command_text
from peagle.cli.image import build_with_status
from peagle.cli.options import OneOf, WholeNumber, command_catalog, names_own_image, refuse_errors
from peagle.cli.plan_options import plan_options
from peagle.cli.project import ProjectCommand
from peagle.cli.session import new_session
from peagle.cli.view.console import (
    json_option,
    print_documents,
    print_findings,
    print_json,
    print_line,
    print_status,
)
from peagle.cli.view.progress import StatusLine
from peagle.cli.view.proof import second_turn_text
from peagle.engine.local import start_local, stop_local
from peagle.engine.logs import local_log
from peagle.engine.process import is_healthy
from peagle.engine.runner import LocalOptions, find_image
from peagle.engine.state import (
    LocalEngine,
    local_engine_names,
    local_engines,
    read_local_engine,
    read_warm_start,
    unreadable_records,
)
from peagle.errors import DockerMissing, Fix, NotFound, OptionMissing, OptionsConflict, command_line
from peagle.images import Image
from peagle.images.build import findings_on_this_machine
from peagle.images.docker import compose_command, connect_docker, unchecked_image
from peagle.planning import Plan
from peagle.proof import proof_findings
from peagle.protocol import request_body
from peagle.render.image import RuntimeKind
from peagle.render.requests import pair_arguments
from peagle.store import write_output


@click.group(epilog="Example: peagle local up tiny && peagle local down peagle-tiny")
def local() -> None:
    """Run a plan on this machine, without AWS.

    Uses the CPU build of vLLM from `peagle engine install`, or with --engine docker the image that
    SageMaker runs.
    """


@local.command(cls=ProjectCommand, epilog="Example: peagle local up tiny --port 8000")
@partial(plan_options, tag_flag=None)
@click.option(
    "--port", type=WholeNumber(1, 65535), help="Port to listen on.  [default: a free one]"
)
@click.option(
    "--engine",
    "engine_kind",
    type=OneOf(["process", "docker"]),
    default="process",
    show_default=True,
    help="Run the engine as a process or in a container.",
)
@click.option("--gpus", is_flag=True, help="Docker: use the GPU image and all GPUs.")
@click.option("--compile", "compiled", is_flag=True, help="On a CPU: compile the model.")
@click.option("--build", "build_first", is_flag=True, help="Docker: build the image first.")
@click.option("--base", metavar="IMAGE", help="Docker, with --build: base image.")
@click.option(
    "--emit-compose",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Docker: write a compose file (- for stdout) and start nothing.",
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
    """Run PAIR or PLAN, and prove that it speculates.

    Returns when the engine is ready; the engine runs until `peagle local down`. Repeating the
    command changes nothing. Only this machine can reach the engine. On a CPU the model is compiled
    only with --compile; `peagle warm --local` makes such starts faster.
    """
    refuse_errors(findings_on_this_machine(plan, engine_kind))
    image = None
    if compiled and gpus:
        raise OptionsConflict("with --gpus the engine always compiles", "omit --compile")
    if engine_kind == "docker":
        image = (_compose_image if emit_compose else local_image)(plan, gpus, build_first, base)
    elif gpus or build_first or base or emit_compose:
        raise OptionMissing(
            "--gpus, --build, --base and --emit-compose need a container", "add --engine docker"
        )
    options = LocalOptions(image, gpus, compiled)
    if emit_compose:
        return _write_compose(plan, options, port, emit_compose, as_json)
    with StatusLine() as status:
        engine = start_local(plan, port, status.show, options)
    return print_json(document(engine)) if as_json else _print_engine(engine)


@local.command(cls=PeagleCommand, epilog="Example: peagle local down peagle-tiny")
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="Stop all engines.")
@click.option("--now", is_flag=True, help="Do not wait for running requests.")
@json_option
def down(name: str | None, everything: bool, now: bool, as_json: bool) -> None:
    """Stop the engine NAME and remove its log and state.

    Waits up to a minute for running requests; new ones are rejected.
    """
    if everything == (name is not None):
        raise OptionMissing("exactly one of NAME and --all is required", "add a NAME, or --all")
    names = local_engine_names() if everything else (str(name),)
    unreadable = unreadable_records() if everything else {}
    names = tuple(engine_name for engine_name in names if engine_name not in unreadable)
    stopped = [engine_name for engine_name in names if _stop(engine_name, now)]
    if as_json:
        print_json({"ended": stopped, "removed": list(names)})
    else:
        for engine_name in names:
            print_line(
                f"Stopped {engine_name}."
                if engine_name in stopped
                else f"Removed {engine_name} (not running)."
            )
        if not names:
            print_line("No engines are running.")
    for engine_name in unreadable:
        read_local_engine(engine_name)  # raises the error


@local.command(cls=PeagleCommand, epilog="Example: peagle local logs peagle-tiny -f")
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Print new lines as they are written.")
def logs(name: str, follow: bool) -> None:
    """Print the log of the engine NAME."""
    for line in local_log(name, follow):
        click.echo(line)


@local.command("list", cls=PeagleCommand, epilog="Example: peagle local list --json")
@json_option
def list_(as_json: bool) -> None:
    """List the engines of this machine."""
    engines, unreadable = local_engines(), unreadable_records()
    documents = [document(engine) for engine in engines]
    documents += [
        {"name": name, "state": "unknown", "record": str(path)} for name, path in unreadable.items()
    ]
    if as_json:
        print_json({"engines": documents})
        return
    print_documents(documents, _LISTED)
    if not engines and not unreadable:
        start = command_text(("peagle", "local", "up", "PAIR"))
        print_status("No engines are running. Start one", start)


_LISTED = (
    "name", "pair", "state", "healthy", "engine", "openai_base_url", "acceptance_length", "record",
)  # fmt: skip


def document(engine: LocalEngine) -> dict[str, Any]:
    """The engine as one JSON document."""
    warm = read_warm_start(Path(engine.process.log))
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
        "second_turn": asdict(engine.second_turn) if engine.second_turn else None,
        "findings": [finding.model_dump() for finding in proof_findings(engine.second_turn)],
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


def _stop(name: str, now: bool) -> bool:
    """Stop the engine; whether it was running."""
    with StatusLine() as status:

        def waiting(seconds: float) -> None:
            status.show(
                f"waiting up to {seconds:.0f} s for running requests of {name} (--now skips this)"
            )

        return stop_local(name, now, waiting) is not None


def _print_engine(engine: LocalEngine) -> None:
    if engine.acceptance_length is not None:
        print_line(
            f"{engine.pair} speculates: acceptance length {engine.acceptance_length:.2f} over "
            f"{engine.drafts} drafts."
        )
        if engine.second_turn:
            print_line(f"  second turn: {second_turn_text(engine.second_turn)}")
            print_findings(proof_findings(engine.second_turn), err=True)
    else:
        print_line(f"{engine.pair} responds.")
    if warm := read_warm_start(Path(engine.process.log)):
        print_line(warm.text)
    if engine.notes:
        print_line(
            f"{len(engine.notes)} settings were changed for the CPU; the log lists them first."
        )
    body = request_body("Hello!", chat=True, max_tokens=64)
    body |= {"model": engine.served_as, "stream": True}
    request = ["curl", "-N", f"{engine.openai_base_url}/chat/completions",
               "-H", "Content-Type: application/json", "-d", json.dumps(body)]  # fmt: skip
    print_line(f"OpenAI base URL:  {engine.openai_base_url}")
    click.echo(f"Send a request:   {command_line(request)}")
    click.echo(f"Read the log:     {command_text(['peagle', 'local', 'logs', engine.name, '-f'])}")
    click.echo(f"Stop it:          {command_text(['peagle', 'local', 'down', engine.name])}")


def local_image(
    plan: Plan, gpus: bool, build_first: bool = False, base: str | None = None
) -> Image:
    """The image for the plan: ``--image``, else the newest suitable one; with ``build_first`` a new
    one.

    Raises DockerMissing, and NotFound with the command that builds a missing image.
    """
    runtime: RuntimeKind = "gpu" if gpus else "cpu"
    if build_first:
        request = ImageRequest(plan, command_catalog(), runtime, base=base)
        return build_with_status(request, new_session(click.get_current_context())).image
    docker = connect_docker()
    ctx = click.get_current_context()
    command = ("peagle", "image", "build", *pair_arguments(plan), "--runtime", runtime)
    named = plan.runtime.image if names_own_image(plan) else None
    image = find_image(docker, plan, runtime, named, command)
    if image is None:
        kind = "GPU" if gpus else "CPU"
        raise NotFound(
            f"this machine has no {kind} image of {plan.pair}",
            Fix("add --build, or build it" if "build_first" in ctx.params else "build it", command),
            code="image-missing",
        )
    return image


def _compose_image(plan: Plan, gpus: bool, build_first: bool, base: str | None) -> Image:
    """The image for a compose file, whose ``--image`` need not be on this machine."""
    try:
        return local_image(plan, gpus, build_first, base)
    except (DockerMissing, NotFound) as missing:
        if build_first or not names_own_image(plan):
            raise
        named = plan.runtime.image
        print_status(f"Could not check whether {named} is for {plan.pair}: {missing.message}.")
        return unchecked_image(named)


def _write_compose(
    plan: Plan, options: LocalOptions, port: int | None, file: Path, as_json: bool
) -> None:
    text, published = options.compose(plan, port)
    if str(file) == "-":
        click.echo(text, nl=False)
    else:
        write_output(file, text.encode())
    if as_json:
        print_json({"file": str(file), "port": published})
    elif str(file) != "-":
        up = f"{compose_command()} --file {file} up"
        print_status(f"{file} publishes port {published}", up)
