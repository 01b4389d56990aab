"""Weights that the engine itself reads from S3 while it starts, instead of finding them mounted.

vLLM's loader for it, the Run:ai model streamer, loads target and drafter alike, each from an
``s3://`` prefix, a folder or the hub; the rest of a model (config.json, tokenizer) it copies to its
cache first. Read in vLLM 0.28.0 and tried with it (``tests/engine/test_streamer_vllm.py``).

The target must lie in S3. A drafter there is streamed as well; one of the hub is downloaded by the
engine, and a folder is uploaded and mounted as ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from toolkit.catalog import versions
from toolkit.catalog.tables import Instance, Runtime, RuntimeTable
from toolkit.errors import UserError
from toolkit.findings import Finding, error, note
from toolkit.planning.choice import Choice
from toolkit.planning.models import Options, Reason, Weights
from toolkit.planning.words import size_text

LOADER = "runai_streamer"
"""vLLM's ``--load-format`` that reads ``s3://`` addresses."""

WITHOUT_STREAMER = "runtime-without-streamer"
REGION_VARIABLE = "AWS_DEFAULT_REGION"
BUFFER_VARIABLE = "RUNAI_STREAMER_MEMORY_LIMIT"
"""Of the streamer's buffer in host memory, in bytes; without it 40 GB or all, by its version."""

_BUFFER_SHARE = 4
"""The buffers of all GPUs together take this part of the host's memory: room for any one tensor,
and enough left for engine and system on the smallest hosts."""


@dataclass(frozen=True)
class Streaming:
    """Where a plan that streams would run: the engines of ``gpus`` read the weights each."""

    runtime: Runtime
    runtimes: RuntimeTable
    instance: Instance
    gpus: int
    region: str


def by_stream(
    options: Options, target: Weights, drafter: Weights | None
) -> tuple[Weights, Weights | None]:
    """Both, those in S3 as vLLM reads them from there. Raises UserError for a target elsewhere."""
    if options.baked_weights:
        raise UserError(
            "--baked-weights and --weights-by stream exclude each other", "leave one of them out"
        )
    if target.kind != "s3":
        raise UserError(
            f"--weights-by stream reads weights from S3, and the target's are {_elsewhere(target)}",
            f"copy them: peagle weights sync {options.pair} s3://BUCKET/PREFIX; then add "
            "--model-source s3://BUCKET/PREFIX/target/",
        )
    return _streamed(target), _streamed(drafter) if drafter is not None else None


def stream(sizes: Mapping[Weights, int], where: Streaming) -> Choice[dict[str, str]]:
    """The variables that the streamer needs, and what is to be known; nothing for other weights.

    ``sizes`` are those of target and drafter, in bytes.
    """
    streamed = {weights: size for weights, size in sizes.items() if weights.streamed}
    if not streamed:
        return Choice({})
    buffer = where.instance.memory_gib * 2**30 // _BUFFER_SHARE // where.gpus
    environment = {REGION_VARIABLE: where.region, BUFFER_VARIABLE: str(buffer)}
    share = "a quarter of the host's memory" + (" for all GPUs" if where.gpus > 1 else "")
    reasons = (
        _reason(REGION_VARIABLE, where.region, "the engine asks S3 in the endpoint's region"),
        _reason(BUFFER_VARIABLE, str(buffer), f"bytes between S3 and a GPU: {share}"),
    )
    return Choice(environment, reasons, tuple(_findings(streamed, where)))


def _findings(streamed: Mapping[Weights, int], where: Streaming) -> Iterator[Finding]:
    if where.runtime.streamer is None:
        yield error(WITHOUT_STREAMER, "weights_by", *_without_streamer(where))
    places = " and ".join(weights.location for weights in streamed)
    size = size_text(sum(streamed.values()))
    each = f", once for each of {where.gpus} GPUs" if where.gpus > 1 else ""
    message = (
        f"the engine reads {size} from {places} at every start{each}, with the rights of the "
        "execution role; a warm start (`peagle warm`) comes with mounted weights only"
    )
    buckets = dict.fromkeys(weights.location.split("/")[2] for weights in streamed)
    fix = (
        f"the role needs s3:ListBucket and s3:GetObject on {' and '.join(buckets)}, in "
        f"{where.region}; infra/iam/execution-role-policy.json shows how"
    )
    yield note("weights-streamed", "weights_by", message, fix)


def _without_streamer(where: Streaming) -> tuple[str, str]:
    """What is wrong, and which runtimes have what is missing."""
    having = sorted((r.vllm for r in where.runtimes.runtimes if r.streamer), key=versions.parse)
    message = (
        f"the image with vLLM {where.runtime.vllm} is not known to have the Run:ai model streamer, "
        "which reads weights from S3"
    )
    mounted = "leave out --weights-by stream, and SageMaker mounts the weights"
    return message, f"take --vllm {' or '.join(having)}, or {mounted}" if having else mounted


def _streamed(weights: Weights) -> Weights:
    if weights.kind != "s3":
        return weights
    return weights.model_copy(update={"engine_path": weights.location})


def _elsewhere(weights: Weights) -> str:
    places = {"hub": "on the hub", "directory": "in a folder"}
    return f"{places.get(weights.kind, 'elsewhere')} ({weights.location})"


def _reason(what: str, value: str, because: str) -> Reason:
    return Reason(what=what, value=value, because=because)
