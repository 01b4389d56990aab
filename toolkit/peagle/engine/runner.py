"""As what a plan runs on this machine: as a process, or in a container."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from peagle.engine import state as artefacts
from peagle.engine import state as records
from peagle.engine.container import Container, container_name, start_container
from peagle.engine.cpu import (
    cannot_run,
    folders,
    for_cpu,
    link,
    only_in_image,
    only_in_s3,
    weight_bytes,
)
from peagle.engine.install import check_machine
from peagle.engine.installed import check_compiler, check_compiler_in, find_engine, this_machine
from peagle.engine.process import EngineProcess, start_engine
from peagle.errors import Refused
from peagle.images import Docker, Image
from peagle.planning.plan import Plan

Record = Callable[[EngineProcess], object]
Runnable = tuple[dict[str, str], tuple[str, ...]]
"""An environment, and what of the plan it leaves out or changes."""


class Runner(Protocol):
    """What ``up`` asks of it. ``image`` is the container's, ``None`` without one."""

    @property
    def image(self) -> str | None: ...

    def runnable(self, plan: Plan) -> Runnable:
        """The plan's environment as it can be run here. Raises Refused when it cannot."""

    def start(
        self, plan: Plan, environment: Mapping[str, str], port: int, log: Path, record: Record
    ) -> EngineProcess:
        """Begin; ``record`` is called before the engine does."""


@dataclass(frozen=True)
class ProcessRunner:
    """The CPU engine that ``peagle engine install`` brings, as a process.

    ``compiled``: it compiles the model, as an engine on a GPU always does. ``collecting``: it
    starts with empty caches, to offer what it compiled (``peagle.warm.transfer``).
    """

    compiled: bool = False
    collecting: bool = False

    image = None

    def runnable(self, plan: Plan) -> Runnable:
        """For a CPU, if this machine's can run it."""
        check_machine()
        if only_in_image(plan):
            raise Refused(
                f"the weights are baked into {plan.runtime.image}, and a process runs no image",
                "add --engine docker, or leave out --baked-weights",
            )
        engine = find_engine(plan.runtime.vllm)
        runnable = _for_this_cpu(plan, self.compiled)
        if self.compiled:
            check_compiler(engine.python)
        return runnable

    def start(
        self, plan: Plan, environment: Mapping[str, str], port: int, log: Path, record: Record
    ) -> EngineProcess:
        """With links to the weights where the container has them mounted."""
        ml_root = records.folder_of(plan.name) / "ml"
        shutil.rmtree(ml_root, ignore_errors=True)
        link(plan, ml_root)
        engine = find_engine(plan.runtime.vllm)
        given = {**environment, **artefacts.for_process(plan.name, self.compiled, self.collecting)}
        return start_engine(engine, given, ml_root, port, log, record=record)


@dataclass(frozen=True)
class DockerRunner:
    """A container of ``built``; with ``gpus`` it sees all GPUs of this machine, and compiles
    anyway. ``compiled`` and ``collecting`` as for a process."""

    docker: Docker
    built: Image
    gpus: bool = False
    compiled: bool = False
    collecting: bool = False

    @property
    def image(self) -> str:
        """By id: another build of the same name is another image."""
        return self.built.id

    def runnable(self, plan: Plan) -> Runnable:
        """The plan's own environment on GPUs, else what a CPU can take of it."""
        if self.gpus:
            _refuse_s3(plan)
            return dict(plan.environment), ()
        runnable = _for_this_cpu(plan, self.compiled)
        if self.compiled:
            check_compiler_in(self.docker, self.built)
        return runnable

    def container(self, plan: Plan, environment: Mapping[str, str], port: int) -> Container:
        """What is started; weights of folders are mounted unless the image has them, and what was
        compiled before is mounted if anything is kept."""
        mounts = {} if self.built.labels.get("peagle.weights") == "baked" else folders(plan)
        compiled = self.compiled or self.gpus
        variables, warm = artefacts.for_container(self.built, compiled, self.collecting)
        return Container(
            name=container_name("local", plan.name),
            image=self.built.id,
            environment={**environment, **variables},
            mounts={**mounts, **warm},
            port=port,
            gpus=self.gpus,
        )

    def start(
        self, plan: Plan, environment: Mapping[str, str], port: int, log: Path, record: Record
    ) -> EngineProcess:
        """Attached, so that its end is seen."""
        chosen = self.container(plan, environment, port)
        return start_container(self.docker, chosen, log, record)


def _for_this_cpu(plan: Plan, compiled: bool) -> Runnable:
    machine = this_machine()
    _refuse_s3(plan)
    why = cannot_run(plan.environment, weight_bytes(plan), machine)
    if why:
        raise _refused(plan, why)
    return for_cpu(plan.environment, machine, compiled)


def _refuse_s3(plan: Plan) -> None:
    stored = only_in_s3(plan)
    if stored and plan.target.weights.streamed:
        raise _refused(plan, f"only on AWS is there a role that may stream {stored}")
    if stored:
        raise _refused(plan, f"only AWS can mount {stored}")


def _refused(plan: Plan, why: str) -> Refused:
    return Refused(
        f"this machine cannot run {plan.pair}: {why}",
        f"`peagle deploy {plan.target.id} --sandbox` serves a small stand-in under the same "
        "settings",
    )
