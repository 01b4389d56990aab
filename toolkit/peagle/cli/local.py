"""``peagle local``, ``engine`` and ``sandbox``: engines, vLLM and AWS on this machine."""

from __future__ import annotations

import os
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from peagle.catalog import find_instance
from peagle.cli import view
from peagle.cli.context import command_text
from peagle.cli.options import (
    Parsed,
    command,
    command_catalog,
    here_option,
    machine_gpus,
    option,
    region_option,
)
from peagle.cli.plan_options import plan_options
from peagle.cli.project import ProjectCommand
from peagle.cli.session import new_session
from peagle.cli.view.watch import print_engine
from peagle.engine import machine
from peagle.engine.local import local_log, start_copies, stop_local
from peagle.engine.logs import crash_error, read_crash
from peagle.engine.process import LOOPBACK, is_healthy
from peagle.engine.runner import LocalRunner, find_image
from peagle.engine.state import (
    LocalEngine,
    copy_names,
    local_engine_names,
    local_engines,
    read_warm_start,
)
from peagle.errors import EngineMissing, Fix, NotFound, OptionMissing, command_line
from peagle.findings import refuse_errors
from peagle.images.build import findings_on_this_machine
from peagle.images.docker import Image, connect_docker
from peagle.planning import Plan
from peagle.proof import proof_findings
from peagle.render.image import RuntimeKind, is_own_image
from peagle.render.requests import pair_arguments
from peagle.sandbox import client
from peagle.sandbox.faults import DEFAULT_SECONDS, KINDS
from peagle.sandbox.state import EngineKind, read_daemon
from peagle.store import write_output
from peagle.text import format_duration, format_rate, format_size, plain

if TYPE_CHECKING:
    from peagle.weights.sync import SyncProgress


@click.group(epilog="Example: peagle local up tiny && peagle local down peagle-tiny")
def local() -> None:
    """Run a plan on this machine, without AWS.

    Uses vLLM on the GPUs or the CPU of this machine, see `peagle engine install`, or with --engine
    docker the image that SageMaker runs.
    """


@command("peagle local up tiny --port 8000", of=local, cls=ProjectCommand)
@partial(plan_options, tag_flag=None)
@option("--port", "Port to listen on.  [default: a free one]", click.IntRange(1, 65535))
@option("--engine engine_kind", "Run the engine as a process or in a container.",
        ("process", "docker"), default="process")  # fmt: skip
@option("--gpus", "Docker: use the GPU image and all GPUs.", bool, needs="--engine docker")
@option("--compile compiled", "On a CPU: compile the model.", bool)
@option("--build build_first", "Docker: build the image first.", bool, needs="--engine docker")
@option("--base IMAGE", "Docker, with --build: base image.", needs="--build")
@option("--emit-compose FILE", "Docker: write a compose file (- for stdout) and start nothing.",
        "path", needs="--engine docker")  # fmt: skip
@partial(here_option, hidden=False)
def up(
    plan: Plan,
    port: int | None,
    engine_kind: str,
    gpus: bool,
    compiled: bool,
    build_first: bool,
    base: str | None,
    emit_compose: Path | None,
) -> None:
    """Run PAIR or PLAN, and prove that it speculates.

    Returns when the engine is ready; it runs until `peagle local down`, and only this machine can
    reach it. On GPUs, --copies N runs N engines, NAME-1 to NAME-N, and weights in S3 are downloaded
    once. On a CPU the model is compiled only with --compile.
    """
    findings = findings_on_this_machine(plan, engine_kind)
    refuse_errors(findings)
    image = None
    if engine_kind == "docker":
        image = local_image(plan, gpus, build_first, base)
    here = machine_gpus() if image is None else None
    runner = LocalRunner(image, gpus or here is not None, compiled, machine=here)
    if emit_compose:
        text, published = runner.compose(plan, port)
        is_stdout = str(emit_compose) == "-"
        view.print_json({"file": str(emit_compose), "port": published})
        if is_stdout:
            view.print_text(text, nl=False)
        else:
            write_output(emit_compose, text.encode())
            up = ("docker", "compose", "--file", str(emit_compose), "up")
            view.print_status(f"{emit_compose} publishes port {published}", command_line(up))
        return view.print_findings(findings, err=True)
    per_instance = plan.copies.per_instance if plan.copies else 1
    copies = per_instance if here is not None and plan.is_here else 1
    if per_instance > copies:
        view.print_status(f"One engine runs, not {per_instance} copies: they need GPUs and --here")
    with view.StatusLine() as status:
        plan = with_weights_here(plan, status) if runner.gpus else plan
        engines = start_copies(plan, copies, port, status.show, runner)
    view.print_findings(findings, err=True)
    documents = [engine_document(engine) for engine in engines]
    view.print_json({"engines": documents} if copies > 1 else documents[0])
    for engine in engines:
        print_engine(engine)
    return None


def with_weights_here(plan: Plan, status: view.StatusLine) -> Plan:
    """The plan with folders of this machine in place of prefixes in S3, downloaded where they are
    missing, with the AWS account of the environment."""
    weights = [model.weights for model in (plan.target, plan.drafter) if model]
    if not any(each and each.kind == "s3" for each in weights):
        return plan
    from peagle.weights.sync import with_local_weights  # most engines read no S3

    session = new_session()
    return with_local_weights(
        lambda: session.aws(plan.region), plan, lambda progress: show_copy(status, progress)
    )


def show_copy(status: view.StatusLine, progress: SyncProgress) -> None:
    """Show how far a copy of weights is."""
    text = f"Copying | {format_size(progress.done)} of {format_size(progress.total)}"
    if progress.seconds_left is not None:
        text += f" | {format_rate(progress.speed)} | {format_duration(progress.seconds_left)} left"
    status.show_line(text)


@command("peagle local down peagle-tiny", of=local)
@click.argument("name", required=False)
@option("--all everything", "Stop all engines.", bool)
@option("--now", "Do not wait for running requests.", bool)
def down(name: str | None, everything: bool, now: bool) -> None:
    """Stop the engine NAME, or all copies of NAME, and remove its log and state.

    Waits up to a minute for running requests; new ones are rejected.
    """
    if everything == (name is not None):
        raise OptionMissing("exactly one of NAME and --all is required", "add a NAME, or --all")
    names = local_engine_names()
    if name is not None:
        names = (name,) if name in names else copy_names(name) or (name,)
    stopped = []
    for engine in names:
        with view.StatusLine() as status:
            if not (now or view.wants_json()) and engine in local_engine_names():
                status.show(f"waiting for running requests of {engine} (--now skips this)")
            if stop_local(engine, now):
                stopped.append(engine)
    view.print_result({"ended": stopped, "removed": list(names)})


@command("peagle local logs peagle-tiny -f", of=local, json=False)
@click.argument("name")
@option("-f --follow", "Print new lines as they are written.", bool)
def logs(name: str, follow: bool) -> None:
    """Print the log of the engine NAME."""
    for line in local_log(name, follow):
        click.echo(line)


@command("peagle local list --json", name="list", of=local)
def list_() -> None:
    """List the engines of this machine."""
    documents = [engine_document(engine) for engine in local_engines()]
    view.print_result({"engines": documents}, lambda _: view.print_documents(documents, _LISTED))
    for document in documents:
        if document["crash"]:
            view.print_status(f"{document['name']}: {crash_error(document['log'])}")
    if not documents:
        start = command_text(("peagle", "local", "up", "PAIR"))
        view.print_status("No engines are running. Start one", start)


local.add_command(list_, "status")

_LISTED = ("name", "pair", "state", "healthy", "engine", "openai_base_url", "acceptance_length")


def engine_document(engine: LocalEngine) -> dict[str, Any]:
    """What ``--json`` tells of an engine; ``crash`` is why it does not answer."""
    hidden = ("environment", "ready", "chat", "copy_of", "process")
    document = {name: value for name, value in plain(engine).items() if name not in hidden}
    state, healthy = engine.state, is_healthy(engine.process.port)
    crash = None if healthy or state == "starting" else read_crash(engine.process.log)
    explains = crash and (crash.cause if state == "ready" else crash.line)
    return document | {
        "state": "restarting" if explains and state == "ready" else state,
        "healthy": healthy,
        "crash": crash._asdict() if crash and explains else None,
        "engine": "docker" if engine.image else "process",
        "openai_base_url": engine.openai_base_url,
        "findings": proof_findings(engine.second_turn),
        "warm_start": read_warm_start(Path(engine.process.log)),
        **{name: getattr(engine.process, name) for name in ("container", "pid", "port", "log")},
    }


def local_image(
    plan: Plan, gpus: bool, build_first: bool = False, base: str | None = None
) -> Image:
    """``--image``, else the newest suitable image, or with ``build_first`` a new one. Raises
    NotFound."""
    runtime: RuntimeKind = "gpu" if gpus else "cpu"
    if build_first:
        from peagle.aws.images import ImageRequest  # with boto3, which a start does not need
        from peagle.cli.image import build_with_status

        request = ImageRequest(plan, command_catalog(), runtime, base=base)
        return build_with_status(request, new_session()).image
    docker = connect_docker()
    command = ("peagle", "image", "build", *pair_arguments(plan), "--runtime", runtime)
    named = plan.runtime.image if is_own_image(plan, command_catalog().runtimes) else None
    image = find_image(docker, plan, runtime, named, command)
    if image is None:
        message = f"this machine has no {runtime.upper()} image of {plan.pair}"
        raise NotFound(message, Fix("build it", command), "image-missing")
    return image


@click.group(epilog="Example: peagle engine install")
def engine() -> None:
    """Install vLLM for this machine, and show what is installed."""


@command("peagle engine install --python /usr/bin/python3.12", of=engine)
@option("--vllm VERSION", "vLLM version.  [default: the catalogue's]")
@option("--python", "Python to run the engine, 3.11 to 3.13.  [default: the one that runs peagle]",
        "path")  # fmt: skip
@option("--gpu", "For NVIDIA GPUs (CUDA 13), in place of the CPU.", bool)
@option("--trainer", "What `peagle train` needs, in place of vLLM.", bool)
def install(vllm: str | None, python: Path | None, gpu: bool, trainer: bool) -> None:
    """Install the engine below $PEAGLE_HOME, from a lock file.

    Needs 2 GB of disk and a minute or more, with --gpu 14 GB and ten minutes; does nothing if
    already installed. uv installs it from the indexes and folders that pip is configured with, and
    checks every hash. For the CPU without PyTorch's index, torch's wheel for your Python must be in
    a folder of PIP_FIND_LINKS.
    """
    version = vllm or command_catalog().runtimes.default
    if trainer:
        trainer_python = machine.install_trainer(version, python, view.print_status, gpu)
        return view.print_result({"trainer": "speculators", "python": str(trainer_python)})
    present = machine.is_installed(version, gpu)
    engine = machine.install_engine(version, python, view.print_status, gpu)
    document = {"vllm": version, "python": str(engine.python), "was_installed": present}
    return view.print_result(document)


@command("peagle engine status --json", name="status", of=engine)
def engine_status() -> None:
    """Show the engine in use and all installed engines."""
    version = command_catalog().runtimes.default
    used, missing = None, None
    try:
        used = str(machine.find_engine(version).python)
    except EngineMissing as error:
        missing = error
    engines = machine.installed_engines()
    document = {
        "vllm": version,
        "python": used,
        "installed": [{"vllm": each.vllm, "python": str(each.python)} for each in engines],
        "missing_packages": machine.missing_libraries(),
    }
    view.print_result(document)
    if missing:
        view.print_status(f"{missing.message} ({missing.fix})", command_text(missing.command))


@click.group(epilog='Example: peagle sandbox start && eval "$(peagle sandbox env)"')
def sandbox() -> None:
    """Run AWS on this machine, with working endpoints.

    Works with any AWS client: boto3, the AWS CLI, Terraform.
    """


@command("peagle sandbox start --port 18300", of=sandbox)
@option("--port", "[default: a free port]", click.IntRange(0, 65535), default=0, show_default=False)
@option("--engine", "How endpoints run.  [default: process]", ("process", "docker"))
def start(port: int, engine: EngineKind | None) -> None:
    """Start the sandbox, unless it is running.

    With --engine docker, endpoints run as containers, using the model's image if it is a local CPU
    image, else the newest CPU image.
    """
    daemon = client.start_sandbox(port, engine)
    view.print_json({"url": daemon.url, "pid": daemon.pid})
    view.print_line(f"The sandbox is running at {daemon.url} (process {daemon.pid}).")
    environment = command_text(("peagle", "sandbox", "env"))
    deploy = command_text(("peagle", "deploy", "tiny", "--sandbox"))
    view.print_text(f'To use it in this shell:  eval "$({environment})"')
    view.print_text(f"Or directly:              {deploy}")


@command("peagle sandbox stop", of=sandbox)
def stop() -> None:
    """Stop the sandbox and its engines, and delete its state."""
    view.print_result(client.stop_sandbox())


@command("peagle sandbox status --json", of=sandbox)
def status() -> None:
    """Show whether the sandbox is running, and its endpoints."""
    view.print_result(client.sandbox_status())


@command('eval "$(peagle sandbox env)"', of=sandbox)
@region_option("AWS clients")
def env(region: str) -> None:
    """Print shell commands that point AWS clients to the sandbox.

    Fails if the sandbox is not running.
    """
    daemon = read_daemon()
    if daemon is None:
        raise client.sandbox_not_running()
    variables = daemon.environment(region)
    if any(name.lower() in ("http_proxy", "all_proxy", "https_proxy") for name in os.environ):
        excluded = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
        variables["NO_PROXY"] = f"{excluded},{LOOPBACK}" if excluded else LOOPBACK
        variables["no_proxy"] = variables["NO_PROXY"]
    view.print_json(variables)
    for name, value in variables.items():
        view.print_text(f"export {name}={shlex.quote(value)}")
    view.print_text(f"unset {command_line(client.conflicting_variables(os.environ))}")


_ADD_HELP = """Let OPERATION fail from now on.

OPERATION is a name of the AWS API, such as CreateEndpoint, or s3:PutObject where several services
have it. Kinds:

\b
""" + "\n".join(f"{kind:<24}{what}" for kind, what in KINDS.items())


def _times(text: str) -> int | None:
    if text in ("once", "always"):
        return 1 if text == "once" else None
    if not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise ValueError(f"{text!r} is not once, always or a number above 0")
    return int(text)


@sandbox.group(epilog="Example: peagle sandbox fault add CreateEndpoint insufficient-capacity")
def fault() -> None:
    """Let AWS operations and endpoints fail in the sandbox.

    Shows what a command does when AWS denies access, has no capacity or does not answer.
    """


@command("peagle sandbox fault add CreateEndpoint insufficient-capacity", of=fault, help=_ADD_HELP)
@click.argument("operation")
@click.argument("kind", metavar="KIND", type=click.Choice(list(KINDS)))
@option("--times once|always|N", "How many calls fail.  [default: always]", default="always",
        type=Parsed("text", _times), show_default=False)  # fmt: skip
@option("--instance-type TYPE", "Only endpoints with this instance type.")
@option("--seconds", "Delay of a timeout.", click.FloatRange(min=0), default=DEFAULT_SECONDS)
def add(
    operation: str, kind: str, times: int | None, instance_type: str | None, seconds: float
) -> None:
    if instance_type:
        find_instance(command_catalog().instances, instance_type)
    view.print_result(client.add_fault(operation, kind, times, instance_type, seconds))


@command("peagle sandbox fault list --json", name="list", of=fault)
def list_faults() -> None:
    """List the faults, and how many calls each has met."""
    view.print_result(client.list_faults())


@command("peagle sandbox fault clear CreateEndpoint", of=fault)
@click.argument("operation", required=False)
def clear(operation: str | None) -> None:
    """Remove the faults of OPERATION, or all. Endpoints that are stuck go on."""
    view.print_result({"removed": client.clear_faults(operation)})


@sandbox.group(epilog="Example: peagle sandbox quota set ml.g6e.2xlarge 0")
def quota() -> None:
    """Set how many instances the sandbox's account may have."""


@command("peagle sandbox quota set ml.g5.xlarge 0", name="set", of=quota)
@click.argument("instance_type", metavar="TYPE")
@click.argument("value", type=click.IntRange(min=0))
@region_option("the quota")
def set_(instance_type: str, value: int, region: str) -> None:
    """Allow VALUE instances of TYPE for all endpoints of a region together."""
    client.set_quota(instance_type, value, region)
    view.print_result({"instance_type": instance_type, "region": region, "value": value})


@command("peagle sandbox quota list --json", name="list", of=quota)
def list_quotas() -> None:
    """List the quotas that were set; every other is 2."""
    view.print_result(client.changed_quotas())


@command("peagle sandbox scaling --speed 100", of=sandbox)
@option("--speed N", "How many seconds pass in one; 1 is AWS's time.", click.FloatRange(1, 1000),
        required=True)  # fmt: skip
def scaling(speed: float) -> None:
    """Let the times of automatic scaling pass faster.

    As on AWS, an instance starts after 30 s above the target, and ends after 15 minutes below it
    and the cooldown.
    """
    client.set_scaling_speed(speed)
    view.print_result({"speed": speed})
