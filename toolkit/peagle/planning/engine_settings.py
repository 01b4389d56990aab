"""vLLM's arguments and environment: the plan's own, and the catalogue's settings."""

from __future__ import annotations

from peagle.case import applicable, engine_settings
from peagle.catalog.schema import EngineSetting
from peagle.planning.candidates import PLANNED_GPU_MEMORY_UTILIZATION, Hosting, Workload
from peagle.planning.plan import Decision, Reason, Speculation
from peagle.planning.speculation import speculative_config
from peagle.planning.weights import LOADER, PlacedWeights
from peagle.vllm.environment import Value

NO_RESTART = "PROCESS_AUTO_RECOVERY"
"""Switch of AWS's process supervisor (model-hosting-container-standards)."""

_NO_RESTART = EngineSetting(
    name=NO_RESTART,
    value="false",
    because="a crashed engine must exit, not restart until the health check times out",
)
_STREAMED = EngineSetting(
    name="load-format",
    value=LOADER,
    because="--weights-by stream: the engine reads weights from S3",
)
_UTILIZATION = "gpu-memory-utilization"


def engine_environment(work: Workload, hosting: Hosting) -> Decision[dict[str, str]]:
    """Environment variables beside vLLM's arguments."""
    architecture = hosting.instance.gpu_architecture
    settings = [_NO_RESTART, *applicable(work.target.environment, architecture, work.vllm)]
    environment = {setting.name: text_of(setting.value) for setting in settings}
    return Decision(environment, tuple(_reason(setting.name, setting) for setting in settings))


def engine_arguments(
    work: Workload, hosting: Hosting, placed: PlacedWeights, speculation: Speculation | None
) -> Decision[tuple[str, ...]]:
    """vLLM's argv without the program, with a reason for every setting of the catalogue."""
    architecture = hosting.instance.gpu_architecture
    settings = engine_settings(work.target, work.drafter, architecture, work.vllm)
    if placed.target.streamed:
        settings[_STREAMED.name] = _STREAMED
    arguments = ["--model", placed.target.engine_path]
    if placed.target.revision is not None:
        arguments += ["--revision", placed.target.revision]
    arguments += [
        *("--served-model-name", work.target.id),
        *("--max-model-len", str(work.max_model_len)),
        *("--max-num-seqs", str(work.concurrency)),
        *("--tensor-parallel-size", str(hosting.fit.tensor_parallel_size)),
    ]
    if _UTILIZATION not in settings:
        arguments += [f"--{_UTILIZATION}", str(PLANNED_GPU_MEMORY_UTILIZATION)]
    for name, setting in settings.items():
        arguments += as_arguments(name, setting.value)
    if speculation is not None:
        arguments += ["--speculative-config", speculative_config(speculation, placed.drafter)]
    reasons = (_reason(f"--{name}", setting) for name, setting in settings.items())
    return Decision(tuple(arguments), tuple(reasons))


def text_of(value: Value) -> str:
    """A value as text in an argv or an environment."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def as_arguments(name: str, value: Value) -> list[str]:
    """One setting as arguments: ``--name``, ``--no-name``, or ``--name value``."""
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", text_of(value)]


def _reason(what: str, setting: EngineSetting) -> Reason:
    return Reason(what=what, value=text_of(setting.value), because=setting.because)
