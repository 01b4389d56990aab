"""The engine: the catalogue's settings, vLLM's arguments and environment, and the memory fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from peagle.case import CaseOptions, applicable, build_case
from peagle.catalog.schema import Catalog, Drafter, EngineSetting, Target
from peagle.catalog.tables import Instance
from peagle.fit.building import draft_model, fit_case, gpu_of, target_model
from peagle.fit.estimate import INSIDE, drafter_on_gpu, fit_of
from peagle.fit.models import Fit, FitCase
from peagle.planning.plan import Decision, Reason, Speculation
from peagle.planning.speculation import speculative_config
from peagle.planning.weights import LOADER, PlacedWeights
from peagle.vllm.environment import Value

NO_RESTART = "PROCESS_AUTO_RECOVERY"
"""Switch of AWS's process supervisor (model-hosting-container-standards)."""


def engine_environment(
    target: Target, gpu_architecture: str, vllm: str
) -> Decision[dict[str, str]]:
    """Environment variables beside vLLM's arguments."""
    because = "a crashed engine must exit, not restart until the health check times out"
    environment, reasons = {NO_RESTART: "false"}, [_reason(NO_RESTART, "false", because)]
    for setting in applicable(target.environment, gpu_architecture, vllm):
        environment[setting.name] = text_of(setting.value)
        reasons.append(_reason(setting.name, text_of(setting.value), setting.because))
    return Decision(environment, tuple(reasons))


def text_of(value: Value) -> str:
    """A value as text in an argv or an environment."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _reason(what: str, value: str, because: str) -> Reason:
    return Reason(what=what, value=value, because=because)


_UTILIZATION = "gpu-memory-utilization"
_LOAD_FORMAT = "load-format"
_STREAMED = EngineSetting(
    name=_LOAD_FORMAT, value=LOADER, because="--weights-by stream: the engine reads weights from S3"
)


def engine_arguments(
    *,
    served_as: str,
    placed: PlacedWeights,
    max_model_len: int,
    concurrency: int,
    tensor_parallel_size: int,
    settings: Mapping[str, EngineSetting],
    speculation: Speculation | None,
) -> Decision[tuple[str, ...]]:
    """vLLM's argv without the program, with a reason for every setting of the catalogue."""
    arguments = ["--model", placed.target.engine_path]
    if placed.target.revision is not None:
        arguments += ["--revision", placed.target.revision]
    arguments += [
        *("--served-model-name", served_as),
        *("--max-model-len", str(max_model_len)),
        *("--max-num-seqs", str(concurrency)),
        *("--tensor-parallel-size", str(tensor_parallel_size)),
    ]
    if _UTILIZATION not in settings:
        arguments += [f"--{_UTILIZATION}", str(GPU_MEMORY_UTILIZATION)]
    reasons: list[Reason] = []
    if placed.target.streamed:
        settings = {**settings, _LOAD_FORMAT: _STREAMED}
    for name, setting in settings.items():
        arguments += as_arguments(name, setting.value)
        shown = text_of(setting.value)
        reasons.append(Reason(what=f"--{name}", value=shown, because=setting.because))
    if speculation is not None:
        arguments += ["--speculative-config", speculative_config(speculation, placed.drafter)]
    return Decision(tuple(arguments), tuple(reasons))


def as_arguments(name: str, value: Value) -> list[str]:
    """One setting as arguments: ``--name``, ``--no-name``, or ``--name value``."""
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", text_of(value)]


GPU_MEMORY_UTILIZATION = 0.9
"""The share of a GPU's memory that vLLM may use; set explicitly, since its default has changed."""


@dataclass(frozen=True)
class Workload:
    """A pair and its load, independent of an instance."""

    target: Target
    drafter: Drafter | None
    k: int
    vllm: str
    max_model_len: int
    concurrency: int
    catalog: Catalog


def memory_fit(work: Workload, on: Instance, tensor_parallel_size: int) -> Fit:
    """What one of ``tensor_parallel_size`` GPUs of this instance holds."""
    return fit_of(planned_fit(work, on, tensor_parallel_size))


def planned_fit(work: Workload, on: Instance, tensor_parallel_size: int) -> FitCase:
    """The memory of the pair as planned, on this instance."""
    options = CaseOptions(
        k=work.k,
        max_model_len=work.max_model_len,
        concurrency=work.concurrency,
        vllm=work.vllm,
        instance_type=on.type,
        tensor_parallel_size=tensor_parallel_size,
    )
    case = build_case(work.catalog, work.target, work.drafter, options)
    planned = {"gpu-memory-utilization": GPU_MEMORY_UTILIZATION}
    return fit_case(replace(case, settings={**planned, **case.settings}), gpu_of(on))


def missing_gib(fit: Fit) -> float:
    """GiB that one GPU lacks for a single request of full length; 0 if it fits."""
    outside = sum(gib for name, gib in fit.terms.items() if not name.startswith(INSIDE))
    return max(outside + fit.terms["cache_of_one_full_request"] - fit.gpu_memory_gib, 0.0)


def drafter_bytes(work: Workload) -> int:
    """Bytes of the drafter's weights on a single GPU."""
    target = target_model(work.target)
    drafter = draft_model(work.drafter, target) if work.drafter else None
    return drafter_on_gpu(drafter, 1) if drafter else 0
