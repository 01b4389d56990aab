"""The catalogue's settings for the engine, on one GPU architecture and vLLM version."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from toolkit.catalog import versions
from toolkit.catalog.models import Drafter, EngineSetting, Target, Value
from toolkit.planning.choice import Choice
from toolkit.planning.models import Reason

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
