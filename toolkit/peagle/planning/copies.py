"""Copies of the engine on one instance, so that each of its GPUs works.

SageMaker runs them as one inference component: every copy is a container with its own GPUs, and
requests go to the copy with the fewest. ``n`` copies are ``n`` engines that share the load evenly.
"""

from __future__ import annotations

import math

from pydantic import Field

from peagle.catalog.schema import Architecture
from peagle.catalog.tables import Instance, InstanceTable
from peagle.checkpoints.division import divisions, is_expert_parallel
from peagle.errors import Fix, OutOfRange, UserError
from peagle.options import AUTO, Frozen, Options

RESERVED_SHARE = 0.75
"""The share of an instance's CPUs and host memory that its copies reserve together. SageMaker's own
processes need some, and AWS does not say how much; a reservation that is too large is never
placed. Copies may use more than they reserve."""

_NO_CAPTURE = (
    "--capture-data is for endpoints with a model: AWS documents no capture of the requests to "
    "inference components, which {flag} makes, and its SDK leaves the setting out for them"
)
"""model_builder.py of sagemaker-python-sdk: data_capture_config is in the branch of models only."""

_CAPTURE_OF_COPIES = "capture-of-copies"
"""Requests to inference components, such as copies of the engine, are not captured.

Fix: omit --capture-data, or the option that makes inference components
"""


class Copies(Frozen):
    """The copies of the engine on each instance, and what each of them reserves: GPUs, CPU cores,
    and MiB of host memory."""

    per_instance: int = Field(ge=1)
    gpus: int = Field(ge=1)
    cpu_cores: int = Field(ge=1)
    memory_mib: int = Field(ge=128)


def reserved(instance: Instance, copies: int, gpus: int) -> Copies:
    """``copies`` with ``gpus`` GPUs each, and equal shares of the instance's CPUs and memory."""
    return Copies(
        per_instance=copies,
        gpus=gpus,
        cpu_cores=max(1, math.floor(instance.vcpus * RESERVED_SHARE / copies)),
        memory_mib=math.floor(instance.memory_gib * 1024 * RESERVED_SHARE / copies),
    )


def with_copies(options: Options) -> Options:
    """The options for planning, where ``copies`` is ``None`` for one engine without an inference
    component: for ``--copies 1``, and by default with an option that copies exclude. Otherwise
    the default is ``auto``. Instances that scale to zero always have a component: SageMaker keeps
    one of a variant that has a model."""
    if options.copies == 1 and not options.scale_to_zero:
        return options.model_copy(update={"copies": None})
    if options.copies is None and (options.scale_to_zero or may_have_copies(options)):
        return options.model_copy(update={"copies": AUTO})
    return options


def may_have_copies(options: Options) -> bool:
    """Whether the options allow an inference component."""
    return not without_copies(options)


def without_copies(options: Options) -> list[str]:
    """The given options that SageMaker has for instances with a model only."""
    captures = ["--capture-data"] if options.capture_data is not None else []
    moves = options.rollout not in (None, "rolling")
    return captures + ([f"--rollout {options.rollout}"] if moves else [])


def copies_on(options: Options, instance: Instance, gpus: int, concurrency: int) -> int:
    """How many engines with ``gpus`` GPUs run on one instance: one without copies, else the given
    number, or as many as fit and as get a request."""
    if options.copies is None:
        return 1
    if options.copies != AUTO:
        return options.copies
    requests = math.ceil(concurrency / (options.instance_count or 1))
    return max(1, min(instance.gpu_count // gpus, requests))


def sizes_of_copies(options: Options, shape: Architecture, instance: Instance) -> list[int]:
    """The numbers of GPUs that one copy may have; empty where the copies do not fit."""
    fixed = options.copies if isinstance(options.copies, int) else 1
    each = instance.gpu_count // fixed
    return divisions(shape, each, is_expert_parallel(options.settings)) if each else []


def check_copies(options: Options, table: InstanceTable) -> None:
    """Raise UserError if no type, or not the user's own, has a GPU for each copy, and for an option
    that SageMaker has for instances with a model only."""
    copies, instance_type = options.copies, options.instance_type
    if options.scale_to_zero and options.capture_data is not None:
        flag = "--scale-to-zero"
        raise UserError(
            _NO_CAPTURE.format(flag=flag),
            f"omit --capture-data or {flag}",
            code=_CAPTURE_OF_COPIES,
        )
    if copies not in (None, 1) and options.capture_data is not None:
        fix = "omit --capture-data, or use --copies 1"
        raise UserError(_NO_CAPTURE.format(flag="--copies"), fix, code=_CAPTURE_OF_COPIES)
    if not isinstance(copies, int):
        return
    if copies < 1:
        raise OutOfRange(f"--copies {copies} is less than 1", "use 1 or more, or auto")
    types = [instance for instance in table.instances if instance_type in (None, instance.type)]
    most = max(types, key=lambda instance: instance.gpu_count, default=None)
    if most is not None and most.gpu_count < copies:
        which = most.type if instance_type else f"{most.type}, the largest type,"
        count = f"{most.gpu_count} GPU{'' if most.gpu_count == 1 else 's'}"
        raise UserError(
            f"--copies {copies} needs a GPU for each copy; {which} has {count}",
            Fix(
                f"use --copies {most.gpu_count} or less, or --copies auto",
                options=("--copies", f"{most.gpu_count}"),
            ),
            code="too-many-copies",
        )
