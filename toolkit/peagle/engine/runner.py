"""Two ways to run a plan on this machine: as a process, or in a container."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from peagle.engine import state
from peagle.engine.container import (
    Container,
    compose_file,
    container_name,
    start_container,
)
from peagle.engine.cpu import (
    cannot_run,
    for_cpu,
    link_weights,
    local_folders,
    s3_weights,
    weight_bytes,
)
from peagle.engine.install import check_machine
from peagle.engine.machine import check_compiler, check_compiler_in, find_engine, this_machine
from peagle.engine.process import EngineProcess, free_port, refuse_code, start_engine
from peagle.errors import Fix, Refused, UserError
from peagle.images import Docker, Image
from peagle.planning.plan import Plan
from peagle_serve.contract import (
    CACHE_VARIABLE,
    COLLECT,
    IMAGE_DIGEST_VARIABLE,
    ML_ROOT,
    WARM_FOLDER,
    WARM_FOLDER_VARIABLE,
    WARM_MODE_VARIABLE,
    WARM_PINS_VARIABLE,
)

_WARM_MOUNT = f"{ML_ROOT}/{WARM_FOLDER}"
Record = Callable[[EngineProcess], object]
LocalEnvironment = tuple[dict[str, str], tuple[str, ...]]
"""An environment, and notes on how it differs from the plan's."""


@dataclass(frozen=True)
class LocalOptions:
    """How to run a plan on this machine: in a container of ``image``, or without one as a process
    of the CPU engine.

    ``gpus``: the container sees all GPUs, and the engine always compiles. ``compiled``: compile the
    model on a CPU too. ``collecting``: start with empty caches, to offer what the engine compiles
    (``peagle warm``).
    """

    image: Image | None = None
    gpus: bool = False
    compiled: bool = False
    collecting: bool = False


@dataclass(frozen=True)
class ProcessRunner:
    """Runs the CPU engine of ``peagle engine install`` as a process; it has no ``image``."""

    compiled: bool = False
    collecting: bool = False

    image = None

    def local_environment(self, plan: Plan) -> LocalEnvironment:
        """The plan's environment as this machine can run it. Raises Refused when it cannot."""
        check_machine()
        refuse_code(plan.environment)
        if plan.target.weights.kind == "image":
            raise Refused(
                f"the weights are baked into {plan.runtime.image}, which a process does not use",
                "add --engine docker, or omit --baked-weights",
                "weights-baked",
            )
        engine = find_engine(plan.runtime.vllm)
        found = _for_this_cpu(plan, self.compiled)
        if self.compiled:
            check_compiler(engine.python)
        return found

    def start(
        self, plan: Plan, environment: Mapping[str, str], port: int, log: Path, record: Record
    ) -> EngineProcess:
        """Start it, with links to the weights at the paths where the container mounts them;
        ``record`` is called before it begins."""
        ml_root = state.folder_of(plan.name) / "ml"
        shutil.rmtree(ml_root, ignore_errors=True)
        link_weights(plan, ml_root)
        engine = find_engine(plan.runtime.vllm)
        warm: dict[str, str] = {}
        if self.collecting:
            collected = str(state.collected_folder(plan.name))
            warm = {WARM_MODE_VARIABLE: COLLECT, CACHE_VARIABLE: collected}
        elif self.compiled and state.warm_folder().is_dir():
            warm = _restores(environment, str(state.warm_folder()))
        return start_engine(engine, {**environment, **warm}, ml_root, port, log, record)


@dataclass(frozen=True)
class DockerRunner:
    """Runs a container of ``built``."""

    docker: Docker
    built: Image
    gpus: bool = False
    compiled: bool = False
    collecting: bool = False

    @property
    def image(self) -> str:
        """The id: another build with the same name is another image."""
        return self.built.id

    def local_environment(self, plan: Plan) -> LocalEnvironment:
        if self.gpus:
            _refuse_s3(plan)
            return dict(plan.environment), ()
        found = _for_this_cpu(plan, self.compiled)
        if self.compiled:
            check_compiler_in(self.docker, self.built)
        return found

    def container(self, plan: Plan, environment: Mapping[str, str], port: int) -> Container:
        """The container to start, with weights mounted unless the image has them, and with the
        warm starts of this machine."""
        mounts = {} if self.built.baked else local_folders(plan)
        variables = dict(environment)
        if digest := self.built.digest:
            variables[IMAGE_DIGEST_VARIABLE] = digest
        if self.collecting:
            variables[WARM_MODE_VARIABLE] = COLLECT
        elif (self.compiled or self.gpus) and state.warm_folder().is_dir():
            variables |= _restores(environment, _WARM_MOUNT)
            mounts[_WARM_MOUNT] = state.warm_folder()
        return Container(
            name=container_name("local", plan.name),
            image=self.built.id,
            environment=variables,
            mounts=mounts,
            port=port,
            gpus=self.gpus,
        )

    def start(
        self, plan: Plan, environment: Mapping[str, str], port: int, log: Path, record: Record
    ) -> EngineProcess:
        """Start it attached, so that its end is the end of the process."""
        container = self.container(plan, environment, port)
        return start_container(self.docker, container, log, record)


def _restores(environment: Mapping[str, str], folder: str) -> dict[str, str]:
    """The variables with which an engine restores from ``folder``: what the plan pins, else what
    is on this machine."""
    pins = environment.get(WARM_PINS_VARIABLE) or state.warm_pins()
    return {WARM_FOLDER_VARIABLE: folder, **({WARM_PINS_VARIABLE: pins} if pins else {})}


Runner = ProcessRunner | DockerRunner


def runner_of(options: LocalOptions) -> Runner:
    """The runner that the options choose."""
    if options.image is None:
        return ProcessRunner(options.compiled, options.collecting)
    return DockerRunner(Docker(), options.image, options.gpus, options.compiled, options.collecting)


def _for_this_cpu(plan: Plan, compiled: bool) -> LocalEnvironment:
    machine = this_machine()
    _refuse_s3(plan)
    if reason := cannot_run(plan.environment, weight_bytes(plan), machine):
        raise _refused(plan, reason)
    return for_cpu(plan.environment, machine, compiled)


def _refuse_s3(plan: Plan) -> None:
    location = s3_weights(plan)
    if location and plan.target.weights.streamed:
        raise _refused(plan, f"streaming {location} needs a role that exists only on AWS")
    if location:
        raise _refused(plan, f"only AWS can mount {location}")


def _refused(plan: Plan, reason: str) -> Refused:
    return Refused(
        f"this machine cannot run {plan.pair}: {reason}",
        Fix("serve a small stand-in with the same settings",
            ("peagle", "deploy", plan.target.id, "--sandbox")),
        "not-runnable-here",
    )  # fmt: skip


def compose_of_plan(plan: Plan, options: LocalOptions, port: int | None) -> tuple[str, int]:
    """The compose file that runs the plan, and the port that it publishes.

    Raises UserError without an image, and Refused when this machine cannot run the plan.
    """
    runner = runner_of(options)
    if not isinstance(runner, DockerRunner):
        raise UserError("a compose file needs an image", "choose an image of the plan")
    environment, _ = runner.local_environment(plan)
    published = port or free_port()
    # By name: other machines, too, can use the file and pull the image from a registry.
    container = replace(runner.container(plan, environment, published), image=runner.built.name)
    return compose_file(container), published
