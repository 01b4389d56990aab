"""Context length, concurrency and SageMaker's timeouts; vLLM's arguments and environment."""

from __future__ import annotations

from dataclasses import replace

from peagle.case import applicable, engine_settings
from peagle.catalog.schema import Drafter, EngineSetting, Target
from peagle.errors import UserError
from peagle.findings import Finding, error
from peagle.planning.candidates import PLANNED_GPU_MEMORY_UTILIZATION, InstanceFit, Workload
from peagle.planning.plan import Decision, Options, Reason, Speculation, decide
from peagle.planning.speculation import speculative_config
from peagle.planning.weights import LOADER, PlacedWeights, WeightSizes
from peagle.text import format_size
from peagle.vllm.environment import Value

USUAL_CONCURRENCY = 8
"""The default. P-EAGLE gains most with few concurrent requests: +55-69 % with one, +5-25 % with 64
(vLLM's blog of 2026-03-13, GPT-OSS-20B on a B200)."""

CHAT_TEMPLATE_TOKENS = 128
"""Tokens that a chat template may add to a prompt; that of GPT-OSS adds about 70."""


def choose_length(options: Options, target: Target) -> Decision[int]:
    """The longest context in tokens, at most what the target supports; the rules report a longer
    one from the options."""
    length, longest = options.max_model_len, target.architecture.max_positions
    if length is not None:
        if length < 1:
            raise UserError(
                f"--max-model-len {length} is less than 1", "use the longest context in tokens"
            )
        # A larger context is refused; the refused plan shows the longest possible one.
        return Decision(min(length, longest), findings=_too_short(length, target))
    length = target.default_max_model_len
    because = f"the catalogue's default for {target.id}, which supports more"
    if length >= longest:
        because = f"the maximum of {target.id}"
    choice = decide(min(length, longest), "max_model_len", because, shown=f"{length:,}")
    return replace(choice, findings=_too_short(length, target))


def _too_short(length: int, target: Target) -> tuple[Finding, ...]:
    """An error for a context that is too short for the proof."""
    proof = target.proof
    # A token has at least one byte, so this is more than any prompt can take.
    longest = max((len(prompt.encode()) for prompt in proof.prompts), default=0)
    least = longest + proof.max_tokens + (CHAT_TEMPLATE_TOKENS if proof.chat else 0)
    if length >= least:
        return ()
    message = f"the proof's prompts and outputs do not fit into {length:,} tokens"
    fix = f"use --max-model-len {least} or more"
    return (error("context-too-small", "max_model_len", message, fix),)


def choose_concurrency(options: Options, drafter: Drafter | None) -> Decision[int]:
    """The number of concurrent requests; excess requests queue."""
    if options.concurrency is not None:
        if options.concurrency < 1:
            raise UserError(f"--concurrency {options.concurrency} is less than 1", "use 1")
        return Decision(options.concurrency)
    because = "speculation gains most with few concurrent requests; excess requests queue"
    if drafter is None:
        because = "the same as with speculation, for comparison"
    return decide(USUAL_CONCURRENCY, "concurrency", because)


SHORTEST, LONGEST = 60, 3600
"""SageMaker's bounds of both timeouts in seconds, from its service model."""

ENGINE_START_SECONDS = 600
"""For compilation, profiling and graph capture of a first start: four times the 147 s measured on
an H200 with a 20B target."""

MOUNT_BYTES_PER_SECOND = 100_000_000
HUB_BYTES_PER_SECOND = 50_000_000
LOAD_BYTES_PER_SECOND = 200_000_000
"""Slow cases of S3 to instance, Hugging Face to instance, and disk to GPU."""


def choose_download_timeout(sizes: WeightSizes) -> Decision[int]:
    """ModelDataDownloadTimeoutInSeconds: for the weights that SageMaker copies from S3."""
    mounted = [
        size
        for weights, size in sizes
        if weights.kind in ("s3", "directory") and not weights.streamed
    ]
    seconds = _in_minutes(SHORTEST + sum(mounted) / MOUNT_BYTES_PER_SECOND)
    target = sizes[0][0]
    if mounted:
        because = f"{format_size(sum(mounted))} from S3 at 100 MB/s, and a minute"
    elif target.kind == "image":
        because = "SageMaker copies no weights; the image contains them"
    else:
        does = "streams" if target.streamed else "downloads"
        because = f"SageMaker copies no weights; the engine {does} them"
    return decide(seconds, "download_timeout_seconds", because)


def choose_startup_timeout(sizes: WeightSizes, gpus: int) -> Decision[int]:
    """ContainerStartupHealthCheckTimeoutInSeconds: download from the hub, load, compile.

    Each of the ``gpus`` that share a model streams all weights from S3, directly to the GPU.
    """
    from_hub = sum(size for weights, size in sizes if weights.kind == "hub")
    from_s3 = sum(size for weights, size in sizes if weights.streamed) * gpus
    loaded = sum(size for weights, size in sizes if not weights.streamed)
    seconds = _in_minutes(
        ENGINE_START_SECONDS
        + from_hub / HUB_BYTES_PER_SECOND
        + from_s3 / MOUNT_BYTES_PER_SECOND
        + loaded / LOAD_BYTES_PER_SECOND
    )
    parts = (
        (from_hub, "from the hub at 50 MB/s"),
        (from_s3, "from S3 at 100 MB/s" + (f" ({gpus} GPUs read all)" if gpus > 1 else "")),
        (loaded, "to the GPU at 200 MB/s"),
    )
    parts_text = "".join(f"{format_size(size)} {how}, " for size, how in parts if size)
    because = f"{parts_text}and {ENGINE_START_SECONDS // 60} minutes to compile"
    return decide(seconds, "startup_timeout_seconds", because)


def _in_minutes(seconds: float) -> int:
    return min(max(-int(-seconds // 60) * 60, SHORTEST), LONGEST)


NO_RESTART = "PROCESS_AUTO_RECOVERY"
"""Switch of AWS's process supervisor (model-hosting-container-standards)."""

_NO_RESTART = EngineSetting(
    name=NO_RESTART,
    value="false",
    because="a crashed engine must exit instead of restarting until the health check times out",
)
_STREAMED = EngineSetting(
    name="load-format",
    value=LOADER,
    because="--weights-by stream: the engine reads weights from S3",
)
_UTILIZATION = "gpu-memory-utilization"


def engine_environment(work: Workload, on_instance: InstanceFit) -> Decision[dict[str, str]]:
    """Environment variables beside vLLM's arguments."""
    architecture = on_instance.instance.gpu_architecture
    settings = [_NO_RESTART, *applicable(work.target.environment, architecture, work.vllm)]
    environment = {setting.name: text_of(setting.value) for setting in settings}
    return Decision(environment, tuple(_reason(setting.name, setting) for setting in settings))


def engine_arguments(
    work: Workload, on_instance: InstanceFit, placed: PlacedWeights, speculation: Speculation | None
) -> Decision[tuple[str, ...]]:
    """vLLM's argv without the program, with a reason for every setting of the catalogue."""
    architecture = on_instance.instance.gpu_architecture
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
        *("--tensor-parallel-size", str(on_instance.fit.tensor_parallel_size)),
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
