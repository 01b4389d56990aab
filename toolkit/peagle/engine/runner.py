"""Two ways to run a plan on this machine: as a process, or in a container."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from peagle.engine import state
from peagle.engine.container import Container, compose_file, container_name, start_container
from peagle.engine.cpu import (
    cannot_run,
    for_cpu,
    link_weights,
    local_folders,
    s3_weights,
    weight_bytes,
)
from peagle.engine.install import check_machine
from peagle.engine.machine import (
    Engine,
    check_compiler,
    check_compiler_in,
    find_engine,
    this_machine,
)
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
    of the CPU engine of ``peagle engine install``.

    ``gpus``: the container sees all GPUs, and the engine always compiles. ``compiled``: compile the
    model on a CPU too. ``collecting``: start with empty caches, to offer what the engine compiles
    (``peagle warm``).
    """

    image: Image | None = None
    gpus: bool = False
    compiled: bool = False
    collecting: bool = False

    @property
    def image_id(self) -> str | None:
        """Another build with the same name is another image."""
        return self.image.id if self.image else None

    def local_environment(self, plan: Plan) -> LocalEnvironment:
        """The plan's environment as this machine can run it. Raises Refused when it cannot."""
        engine = None if self.image else _engine_for(plan)
        _refuse_s3(plan)
        if self.gpus:
            return dict(plan.environment), ()
        machine = this_machine()
        if reason := cannot_run(plan.environment, weight_bytes(plan), machine):
            raise _refused(plan, reason)
        if self.compiled and engine:
            check_compiler(engine.python)
        elif self.compiled and self.image:
            check_compiler_in(Docker(), self.image)
        return for_cpu(plan.environment, machine, self.compiled)

    def start(
        self, plan: Plan, environment: Mapping[str, str], port: int, log: Path, record: Record
    ) -> EngineProcess:
        """Start the process, or the container, which ends with the process; ``record`` is called
        before it begins. A process has links to the weights at the paths where a container mounts
        them."""
        if self.image:
            container = self.container(plan, environment, port)
            return start_container(Docker(), container, log, record)
        ml_root = state.folder_of(plan.name) / "ml"
        shutil.rmtree(ml_root, ignore_errors=True)
        link_weights(plan, ml_root)
        variables = {**environment, **self._warm(environment, str(state.warm_folder()))}
        if self.collecting:
            variables[CACHE_VARIABLE] = str(state.collected_folder(plan.name))
        engine = find_engine(plan.runtime.vllm)
        return start_engine(engine, variables, ml_root, port, log, record)

    def container(self, plan: Plan, environment: Mapping[str, str], port: int) -> Container:
        """The container to start, with weights mounted unless the image has them, and with the
        warm starts of this machine."""
        assert self.image is not None, "a process has no container"
        warm = self._warm(environment, _WARM_MOUNT)
        mounts = {} if self.image.baked else local_folders(plan)
        if WARM_FOLDER_VARIABLE in warm:
            mounts[_WARM_MOUNT] = state.warm_folder()
        digest = {IMAGE_DIGEST_VARIABLE: self.image.digest} if self.image.digest else {}
        return Container(
            name=container_name("local", plan.name),
            image=self.image.id,
            environment={**environment, **digest, **warm},
            mounts=mounts,
            port=port,
            gpus=self.gpus,
        )

    def _warm(self, environment: Mapping[str, str], folder: str) -> dict[str, str]:
        """The variables with which an engine collects, or restores from ``folder``: what the plan
        pins, else what is on this machine."""
        if self.collecting:
            return {WARM_MODE_VARIABLE: COLLECT}
        if not (self.compiled or self.gpus) or not state.warm_folder().is_dir():
            return {}
        pins = environment.get(WARM_PINS_VARIABLE) or state.warm_pins()
        return {WARM_FOLDER_VARIABLE: folder, **({WARM_PINS_VARIABLE: pins} if pins else {})}


def _engine_for(plan: Plan) -> Engine:
    check_machine()
    refuse_code(plan.environment)
    if plan.target.weights.kind == "image":
        raise Refused(
            f"the weights are baked into {plan.runtime.image}, which a process does not use",
            "add --engine docker, or omit --baked-weights",
            "weights-baked",
        )
    return find_engine(plan.runtime.vllm)


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
    if options.image is None:
        raise UserError("a compose file needs an image", "choose an image of the plan")
    environment, _ = options.local_environment(plan)
    published = port or free_port()
    container = options.container(plan, environment, published)
    # By name: other machines, too, can use the file and pull the image from a registry.
    named = replace(container, image=options.image.name)
    return compose_file(named), published
