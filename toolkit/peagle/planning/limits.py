"""Context length, concurrency, and SageMaker's timeouts."""

from __future__ import annotations

from dataclasses import replace

from peagle.catalog.schema import Drafter, Target
from peagle.errors import UserError
from peagle.findings import Finding, error
from peagle.planning.plan import Decision, Options, decide
from peagle.planning.weights import WeightSizes
from peagle.text import format_size

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
