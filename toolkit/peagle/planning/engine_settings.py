"""The catalogue's settings for the engine, on one GPU architecture and vLLM version.

vLLM's arguments, as a list: nothing is glued together, nothing goes through a shell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from peagle.catalog.schema import Drafter, EngineSetting, Target
from peagle.catalog.tables import Instance
from peagle.fit.building import draft_model, target_model
from peagle.fit.estimate import INSIDE, drafter_on_gpu, fit_of
from peagle.fit.models import Fit, FitCase
from peagle.planning.plan import Decision, Reason, Speculation
from peagle.planning.speculation import speculative_config
from peagle.planning.weights import LOADER, PlacedWeights
from peagle.vllm import versions
from peagle.vllm.defaults import EngineConfig, default_batched_tokens
from peagle.vllm.environment import Value
from peagle.vllm.gpus import visible_gib

NO_RESTART = "PROCESS_AUTO_RECOVERY"
"""Switch of AWS's process supervisor (model-hosting-container-standards)."""

_PLANNED = frozenset(
    {
        "model", "revision", "served-model-name", "max-model-len", "max-num-seqs",
        "tensor-parallel-size", "speculative-config", "port", "host",
    }
)  # fmt: skip
"""Arguments that planning itself decides."""


def engine_settings(
    target: Target, drafter: Drafter | None, gpu_architecture: str, vllm: str
) -> dict[str, EngineSetting]:
    """vLLM's arguments by name, without dashes; the drafter's win over the target's."""
    settings = [*target.engine_arguments, *(drafter.engine_arguments if drafter else ())]
    return {
        setting.name: setting
        for setting in _applying(settings, gpu_architecture, vllm)
        if setting.name not in _PLANNED
    }


def engine_environment(
    target: Target, gpu_architecture: str, vllm: str
) -> Decision[dict[str, str]]:
    """Environment variables beside vLLM's arguments."""
    because = "an engine that crashes must end, not be restarted until the health check gives up"
    environment, reasons = {NO_RESTART: "false"}, [_reason(NO_RESTART, "false", because)]
    for setting in _applying(target.environment, gpu_architecture, vllm):
        environment[setting.name] = text_of(setting.value)
        reasons.append(_reason(setting.name, text_of(setting.value), setting.because))
    return Decision(environment, tuple(reasons))


def text_of(value: Value) -> str:
    """A value as one word of an argv or an environment."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _applying(
    settings: Iterable[EngineSetting], gpu_architecture: str, vllm: str
) -> Iterator[EngineSetting]:
    for setting in settings:
        on_this_gpu = not setting.gpu_architectures or gpu_architecture in setting.gpu_architectures
        if on_this_gpu and (setting.vllm is None or versions.in_range(vllm, setting.vllm)):
            yield setting


def _reason(what: str, value: str, because: str) -> Reason:
    return Reason(what=what, value=value, because=because)


_UTILIZATION = "gpu-memory-utilization"
_LOAD_FORMAT = "load-format"
_STREAMED = EngineSetting(
    name=_LOAD_FORMAT, value=LOADER, because="--weights-by stream: the engine reads them from S3"
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
    """vLLM's argv without the program, and a reason for every setting of the catalogue."""
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
"""The share of a GPU's memory that vLLM may use; given to it, since its default has changed."""


@dataclass(frozen=True)
class Workload:
    """What is to be served, before it is known where."""

    target: Target
    drafter: Drafter | None
    k: int
    vllm: str
    max_model_len: int
    concurrency: int


Settings = Mapping[str, Value]
"""vLLM's arguments on one GPU architecture, without the dashes."""


def memory_fit(work: Workload, settings: Settings, on: Instance, tensor_parallel_size: int) -> Fit:
    """What one of ``tensor_parallel_size`` GPUs of this instance holds."""
    return fit_of(fit_case(work, settings, on, tensor_parallel_size))


def fit_case(
    work: Workload, settings: Settings, on: Instance, tensor_parallel_size: int
) -> FitCase:
    """The case that the fit reckons: the pair, and vLLM on this instance as planned."""
    target = target_model(work.target)
    if "dtype" in settings:
        target = target_model(work.target, str(settings["dtype"]))
    drafter = draft_model(work.drafter, target) if work.drafter else None
    visible = visible_gib(on.gpu, on.gpu_memory_mib)
    engine = EngineConfig(
        gpu=on.gpu,
        gpu_count=on.gpu_count,
        gpu_memory_gib=visible,
        driver_gib=on.gpu_memory_mib / 1024 - visible,
        capability=on.capability,
        vllm=work.vllm,
        max_model_len=work.max_model_len,
        max_num_seqs=work.concurrency,
        max_num_batched_tokens=batched_tokens(settings, on, work.vllm),
        tensor_parallel_size=tensor_parallel_size,
        gpu_memory_utilization=float(
            settings.get("gpu-memory-utilization", GPU_MEMORY_UTILIZATION)
        ),
        kv_cache_dtype=str(settings.get("kv-cache-dtype", "auto")),
        k=work.k if work.drafter else 0,
        enforce_eager=bool(settings.get("enforce-eager")),
        draftless=work.drafter.method if work.drafter and drafter is None else None,
    )
    return FitCase(target, drafter, engine)


def missing_gib(fit: Fit) -> float:
    """GiB that one GPU lacks for a single request of full length; 0 when it fits."""
    outside = sum(gib for name, gib in fit.terms.items() if not name.startswith(INSIDE))
    return max(outside + fit.terms["cache_of_one_full_request"] - fit.gpu_memory_gib, 0.0)


def batched_tokens(settings: Settings, on: Instance, vllm: str) -> int:
    """Tokens of one step: as set, else vLLM's default for its server on that GPU."""
    given = settings.get("max-num-batched-tokens")
    if given is not None:
        return int(given)
    return default_batched_tokens(on.gpu, on.gpu_memory_mib / 1024, vllm)


def drafter_bytes(work: Workload) -> int:
    """Bytes of the drafter's weights on one GPU that holds it all."""
    target = target_model(work.target)
    drafter = draft_model(work.drafter, target) if work.drafter else None
    return drafter_on_gpu(drafter, 1) if drafter else 0
