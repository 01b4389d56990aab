"""The catalogue's settings for the engine, on one GPU architecture and vLLM version.

vLLM's arguments, as a list: nothing is glued together, nothing goes through a shell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from peagle.catalog.schema import Drafter, EngineSetting, Target, Value
from peagle.planning.decision import Choice
from peagle.planning.memory import GPU_MEMORY_UTILIZATION
from peagle.planning.plan import Reason, Speculation
from peagle.planning.speculation import speculative_config
from peagle.planning.weights import LOADER, Placed
from peagle.vllm import versions

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


def engine_environment(target: Target, gpu_architecture: str, vllm: str) -> Choice[dict[str, str]]:
    """Environment variables beside vLLM's arguments."""
    because = "an engine that crashes must end, not be restarted until the health check gives up"
    environment, reasons = {NO_RESTART: "false"}, [_reason(NO_RESTART, "false", because)]
    for setting in _applying(target.environment, gpu_architecture, vllm):
        environment[setting.name] = text_of(setting.value)
        reasons.append(_reason(setting.name, text_of(setting.value), setting.because))
    return Choice(environment, tuple(reasons))


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
    placed: Placed,
    max_model_len: int,
    concurrency: int,
    tensor_parallel_size: int,
    settings: Mapping[str, EngineSetting],
    speculation: Speculation | None,
) -> Choice[tuple[str, ...]]:
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
    return Choice(tuple(arguments), tuple(reasons))


def as_arguments(name: str, value: Value) -> list[str]:
    """One setting as arguments: ``--name``, ``--no-name``, or ``--name value``."""
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", text_of(value)]
