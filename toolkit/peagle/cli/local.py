"""``peagle local`` and ``engine``: run a plan on this machine, and vLLM for its CPU."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from peagle.aws.images import ImageRequest
from peagle.cli.context import PeagleCommand, command_text, fix_in_context
from peagle.cli.image import build_with_status
from peagle.cli.options import command_catalog, names_own_image, refuse_errors
from peagle.cli.plan_options import plan_options
from peagle.cli.project import ProjectCommand
from peagle.cli.session import new_session
from peagle.cli.view.console import (
    json_option,
    print_documents,
    print_findings,
    print_json,
    print_line,
    print_small,
    print_status,
)
from peagle.cli.view.progress import StatusLine
from peagle.cli.view.proof import second_turn_text
from peagle.engine.container import find_image
from peagle.engine.install import install_engine, is_installed, missing_libraries
from peagle.engine.local import start_local, stop_local
from peagle.engine.logs import local_log
from peagle.engine.machine import find_engine, installed_engines
from peagle.engine.process import is_healthy
from peagle.engine.runner import LocalOptions, compose_of_plan
from peagle.engine.state import (
    LocalEngine,
    local_engine_names,
    local_engines,
    read_local_engine,
    read_warm_start,
    unreadable_records,
)
from peagle.errors import (
    DockerMissing,
    EngineMissing,
    Fix,
    NotFound,
    OptionMissing,
    OptionsConflict,
    command_line,
)
from peagle.images import Image
from peagle.images.build import findings_on_this_machine
from peagle.images.docker import compose_command, connect_docker
from peagle.images.inspect import unchecked_image
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
    "--port", type=click.IntRange(1, 65535), help="Port to listen on.  [default: a free one]"
)
@click.option(
    "--engine",
    "engine_kind",
    type=click.Choice(["process", "docker"]),
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
        try:
            image = local_image(plan, gpus, build_first, base)
        except (DockerMissing, NotFound) as missing:
            if not emit_compose or build_first or not names_own_image(plan):
                raise
            named = plan.runtime.image  # of a compose file, which may run on another machine
            print_status(f"Could not check whether {named} is for {plan.pair}: {missing.message}.")
            image = unchecked_image(named)
    elif gpus or build_first or base or emit_compose:
        raise OptionMissing(
            "--gpus, --build, --base and --emit-compose need a container", "add --engine docker"
        )
    options = LocalOptions(image, gpus, compiled)
    if emit_compose:
        text, published = compose_of_plan(plan, options, port)
        is_stdout = str(emit_compose) == "-"
        if is_stdout:
            click.echo(text, nl=False)
        else:
            write_output(emit_compose, text.encode())
        if as_json:
            print_json({"file": str(emit_compose), "port": published})
        elif not is_stdout:
            up = f"{compose_command()} --file {emit_compose} up"
            print_status(f"{emit_compose} publishes port {published}", up)
        return None
    with StatusLine() as status:
        engine = start_local(plan, port, status.show, options)
    if as_json:
        return print_json(engine_document(engine))
    if engine.acceptance_length is None:
        print_line(f"{engine.pair} responds.")
    else:
        print_line(
            f"{engine.pair} speculates: acceptance length {engine.acceptance_length:.2f} over "
            f"{engine.drafts} drafts."
        )
    if engine.second_turn:
        print_line(f"  second turn: {second_turn_text(engine.second_turn)}")
        print_findings(proof_findings(engine.second_turn), err=True)
    if warm := read_warm_start(Path(engine.process.log)):
        print_line(warm.text)
    if engine.notes:
        count = len(engine.notes)
        print_line(f"{count} settings were changed for the CPU; the log lists them first.")
    body = request_body("Hello!", chat=True, max_tokens=64)
    body |= {"model": engine.served_as, "stream": True}
    request = ["curl", "-N", f"{engine.openai_base_url}/chat/completions",
               "-H", "Content-Type: application/json", "-d", json.dumps(body)]  # fmt: skip
    print_line(f"OpenAI base URL:  {engine.openai_base_url}")
    click.echo(f"Send a request:   {command_line(request)}")
    click.echo(f"Read the log:     {command_text(['peagle', 'local', 'logs', engine.name, '-f'])}")
    return click.echo(f"Stop it:          {command_text(['peagle', 'local', 'down', engine.name])}")


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
    unreadable = unreadable_records() if everything else {}
    names = local_engine_names() if everything else (str(name),)
    names = tuple(engine for engine in names if engine not in unreadable)

    def stop(engine: str) -> bool:
        with StatusLine() as status:
            wait = f"for running requests of {engine} (--now skips this)"
            stopped = stop_local(
                engine, now, lambda left: status.show(f"waiting up to {left:.0f} s {wait}")
            )
            return stopped is not None

    stopped = [engine for engine in names if stop(engine)]
    if as_json:
        print_json({"ended": stopped, "removed": list(names)})
    else:
        for engine in names:
            was = "Stopped" if engine in stopped else "Removed, without a running engine,"
            print_line(f"{was} {engine}.")
        if not names:
            print_line("No engines are running.")
    for engine in unreadable:
        read_local_engine(engine)  # raises the error


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
    documents = [engine_document(engine) for engine in local_engines()]
    for name, path in unreadable_records().items():
        documents.append({"name": name, "state": "unknown", "record": str(path)})
    if as_json:
        return print_json({"engines": documents})
    print_documents(documents, _LISTED)
    if not documents:
        start = command_text(("peagle", "local", "up", "PAIR"))
        print_status("No engines are running. Start one", start)
    return None


_LISTED = (
    "name", "pair", "state", "healthy", "engine", "openai_base_url", "acceptance_length", "record",
)  # fmt: skip


def engine_document(engine: LocalEngine) -> dict[str, Any]:
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


@click.group(epilog="Example: peagle engine install")
def engine() -> None:
    """Install vLLM for this machine's CPU, and show what is installed."""


@engine.command(
    cls=PeagleCommand, epilog="Example: peagle engine install --python /usr/bin/python3.12"
)
@click.option("--vllm", metavar="VERSION", help="vLLM version.  [default: the catalogue's]")
@click.option(
    "--python",
    type=click.Path(path_type=Path),
    help="Python to run the engine, 3.11 to 3.13.  [default: the one that runs peagle]",
)
@json_option
@click.pass_context
def install(ctx: click.Context, vllm: str | None, python: Path | None, as_json: bool) -> None:
    """Install the engine below $PEAGLE_HOME, from a lock file.

    Needs 2 GB of disk and takes a minute or more; does nothing if already installed. uv installs
    it from the indexes and folders that pip is configured with, and checks every hash. Without
    PyTorch's index, torch's wheel for your Python must be in a folder of PIP_FIND_LINKS.
    """
    version = vllm or command_catalog(ctx).runtimes.default
    present = is_installed(version)
    installed = install_engine(version, python, progress=print_status)
    document = {"vllm": version, "python": str(installed.python), "was_installed": present}
    print_small(document, as_json)


@engine.command("status", cls=PeagleCommand, epilog="Example: peagle engine status --json")
@json_option
@click.pass_context
def engine_status(ctx: click.Context, as_json: bool) -> None:
    """Show the engine in use and all installed engines."""
    version = command_catalog(ctx).runtimes.default
    used, missing = None, None
    try:
        used = str(find_engine(version).python)
    except EngineMissing as error:
        missing = error
    document = {
        "vllm": version,
        "python": used,
        "installed": [
            {"vllm": engine.vllm, "python": str(engine.python)} for engine in installed_engines()
        ],
        "missing_packages": list(missing_libraries()),
    }
    print_small(document, as_json)
    if missing and not as_json:
        print_status(missing.message, fix_in_context(missing.fix, missing.command))
