"""SageMaker's timeouts; vLLM's arguments and environment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from peagle.case import applicable, engine_settings, prefix_caching_with
from peagle.catalog.schema import EngineSetting
from peagle.checks.facts import needs_vocabulary
from peagle.errors import Fix, OutOfRange, UserError
from peagle.findings import note, warning
from peagle.fit.estimate import cache_layout
from peagle.planning.candidates import PLANNED_GPU_MEMORY_UTILIZATION, InstanceFit, PairLoad
from peagle.planning.options import Options
from peagle.planning.overrides import settings_of, switch_or_text
from peagle.planning.plan import Decision, Reason, Speculation, decide
from peagle.planning.speculation import speculative_config
from peagle.planning.weights import (
    LOADER,
    PlacedWeights,
    WeightSizes,
    hub_bytes,
    loaded_bytes,
    mounted_sizes,
    streamed_bytes,
)
from peagle.text import exact_duration, format_duration, format_rate, format_size
from peagle.vllm.environment import Value
from peagle.vllm.prefix_caching import NO_PREFIX_CACHING, PREFIX_CACHING, tokens_lost
from peagle_serve.contract import ML_ROOT, VOCABULARY_FILE, VOCABULARY_VARIABLE

SHORTEST, LONGEST = 60, 3600
"""SageMaker's bounds of both timeouts in seconds, from its service model."""

ENGINE_START_SECONDS = 600
"""For compilation, profiling and graph capture of a first start: four times the 147 s measured on
an H200 with a 20B target."""

MOUNT_BYTES_PER_SECOND = 100_000_000
HUB_BYTES_PER_SECOND = 50_000_000
LOAD_BYTES_PER_SECOND = 200_000_000
"""Slow cases of S3 to instance, Hugging Face to instance, and disk to GPU."""


def choose_download_timeout(options: Options, sizes: WeightSizes) -> Decision[int]:
    """ModelDataDownloadTimeoutInSeconds: for the weights that SageMaker copies from S3."""
    mounted = mounted_sizes(sizes)
    needed = SHORTEST + sum(mounted) / MOUNT_BYTES_PER_SECOND
    target = sizes[0][0]
    if mounted:
        rate = format_rate(MOUNT_BYTES_PER_SECOND)
        because = f"{format_size(sum(mounted))} from S3 at {rate}, and a minute"
    elif target.kind == "image":
        because = "SageMaker copies no weights; the image contains them"
    else:
        does = "streams" if target.streamed else "downloads"
        because = f"SageMaker copies no weights; the engine {does} them"
    return _timeout("download", options.pair, options.download_timeout, needed, because)


def choose_startup_timeout(options: Options, sizes: WeightSizes, gpus: int) -> Decision[int]:
    """ContainerStartupHealthCheckTimeoutInSeconds: download from the Hub, load, compile."""
    from_hub, from_s3 = hub_bytes(sizes), streamed_bytes(sizes, gpus)
    loaded = loaded_bytes(sizes)
    needed = (
        ENGINE_START_SECONDS
        + from_hub / HUB_BYTES_PER_SECOND
        + from_s3 / MOUNT_BYTES_PER_SECOND
        + loaded / LOAD_BYTES_PER_SECOND
    )
    readers = f" ({gpus} GPUs read all)" if gpus > 1 else ""
    parts = (
        (from_hub, f"from the Hub at {format_rate(HUB_BYTES_PER_SECOND)}"),
        (from_s3, f"from S3 at {format_rate(MOUNT_BYTES_PER_SECOND)}{readers}"),
        (loaded, f"to the GPU at {format_rate(LOAD_BYTES_PER_SECOND)}"),
    )
    parts_text = "".join(f"{format_size(size)} {how}, " for size, how in parts if size)
    because = f"{parts_text}and {ENGINE_START_SECONDS // 60} minutes to compile"
    return _timeout("startup", options.pair, options.startup_timeout, needed, because)


def _timeout(kind: str, pair: str, given: int | None, needed: float, because: str) -> Decision[int]:
    """The user's timeout, else the needed one in whole minutes; both within SageMaker's bounds.

    Raises UserError for a timeout that SageMaker rejects.
    """
    what, flag = f"{kind}_timeout_seconds", f"{kind}_timeout"
    if given is not None and not SHORTEST <= given <= LONGEST:
        raise OutOfRange(
            f"{flag} {exact_duration(given)} is outside of SageMaker's limits",
            f"use {SHORTEST}s to {exact_duration(LONGEST)}",
        )
    minutes = max(-int(-needed // 60) * 60, SHORTEST)
    if minutes > LONGEST:
        message = (
            f"a slow case takes {format_duration(minutes)} ({because}); SageMaker waits at most "
            f"{format_duration(LONGEST)}"
        )
        finding = warning("timeout-at-maximum", what, message, _shorter(kind, pair))
        chosen = LONGEST if given is None else given
        return replace(decide(chosen, what, because), findings=(finding,))
    if given is None:
        return decide(minutes, what, because)
    if given < minutes:
        message = f"{flag} {exact_duration(given)} is less than a slow case needs: {because}"
        finding = note(
            "timeout-short", what, message, f"use {flag} {exact_duration(minutes)}, or omit it"
        )
        return Decision(given, findings=(finding,))
    return Decision(given)


def _shorter(kind: str, pair: str) -> Fix:
    """What reduces the download by SageMaker, or the startup."""
    if kind == "download":
        return Fix("use weights_by stream: the engine reads the weights, or a smaller target")
    return Fix(
        "choose a smaller target, or let SageMaker mount weights in S3 (--model-source): that copy "
        "does not count as startup",
        ("peagle", "weights", "sync", pair, "s3://BUCKET/PREFIX"),
    )


NO_RESTART = "PROCESS_AUTO_RECOVERY"
"""Switch of AWS's process supervisor (model-hosting-container-standards)."""

_NO_RESTART = EngineSetting(
    name=NO_RESTART,
    value="false",
    because="a crashed engine must exit instead of restarting until the health check times out",
)
_HUB_HOME = EngineSetting(
    name="HF_HOME",
    value="/tmp/huggingface",  # nosec B108 # the container has one user
    because="downloads go to the instance's NVMe; the root disk may be too small for them",
)
_OFFLINE = EngineSetting(
    name="HF_HUB_OFFLINE",
    value="1",
    because="network_isolation: a download fails at once instead of after many attempts",
)
_STREAMED = EngineSetting(
    name="load-format",
    value=LOADER,
    because="weights_by stream: the engine reads weights from S3",
)
_UTILIZATION = "gpu-memory-utilization"


def engine_environment(
    options: Options, work: PairLoad, on_instance: InstanceFit, placed: PlacedWeights
) -> Decision[dict[str, str]]:
    """Environment variables in addition to vLLM's arguments, without those that the user sets."""
    instance = on_instance.instance
    settings = [_NO_RESTART]
    if instance.nvme_gb and any(w and w.kind == "hub" for w in (placed.target, placed.drafter)):
        settings.append(_HUB_HOME)
    settings += _isolated(work, placed) if options.network_isolation else []
    settings += applicable(work.target.environment, instance.gpu_architecture, work.vllm)
    environment = {setting.name: as_text(setting.value) for setting in settings}
    reasons = (_reason(s.name, s) for s in settings if s.name not in options.environment)
    return Decision(environment, tuple(reasons))


def _isolated(work: PairLoad, placed: PlacedWeights) -> list[EngineSetting]:
    """Variables of a container without a network. GPT-OSS's vocabulary is next to its weights."""
    folder = placed.target.engine_path
    if not needs_vocabulary(work.target.architecture) or not folder.startswith(ML_ROOT):
        return [_OFFLINE]
    because = f"network_isolation: {VOCABULARY_FILE} comes from next to the weights"
    return [_OFFLINE, EngineSetting(name=VOCABULARY_VARIABLE, value=folder, because=because)]


def engine_arguments(
    options: Options,
    work: PairLoad,
    on_instance: InstanceFit,
    placed: PlacedWeights,
    speculation: Speculation | None,
) -> Decision[tuple[str, ...]]:
    """vLLM's argv without the program, with a reason for every setting of the catalogue."""
    architecture = on_instance.instance.gpu_architecture
    table = work.catalog.runtimes
    settings = engine_settings(work.target, work.drafter, architecture, work.vllm, table)
    if placed.target.streamed:
        settings[_STREAMED.name] = _STREAMED
    own = options.settings
    for name, text in own.items():
        replaced = [settings.pop(each, None) for each in settings_of({name: text})]
        if not text and not any(replaced):
            raise UserError(
                f"--set {name}= leaves out nothing: the plan does not set {name}",
                "give it a value",
                code="nothing-to-leave-out",
            )
    arguments = ["--model", placed.target.engine_path]
    if placed.target.revision is not None:
        arguments += ["--revision", placed.target.revision]
    arguments += [
        *("--served-model-name", work.target.id),
        *("--max-model-len", str(work.max_model_len)),
        *("--max-num-seqs", str(work.concurrency)),
        *("--tensor-parallel-size", str(on_instance.fit.tensor_parallel_size)),
    ]
    if _UTILIZATION not in {*settings, *own}:
        arguments += [f"--{_UTILIZATION}", str(PLANNED_GPU_MEMORY_UTILIZATION)]
    for name, setting in settings.items():
        arguments += as_arguments(name, setting.value)
    for name, text in own.items():
        if text:
            arguments += as_arguments(name, switch_or_text(text))
    if speculation is not None:
        arguments += ["--speculative-config", speculative_config(speculation, placed.drafter)]
    reasons = [_reason(f"--{name}", setting) for name, setting in settings.items()]
    if not {PREFIX_CACHING, NO_PREFIX_CACHING} & {*settings, *own}:
        reasons += _cached(work, on_instance)
    return Decision(tuple(arguments), tuple(reasons))


def _cached(work: PairLoad, on_instance: InstanceFit) -> Iterator[Reason]:
    """Why the prefix cache, on by default in vLLM, stays on, and what a hit loses."""
    found = prefix_caching_with(work.target, work.drafter, work.vllm, work.catalog.runtimes)
    if found is None or work.drafter is None:
        return
    blocks = [group.block_tokens for group in cache_layout(on_instance.case).groups]
    lost = tokens_lost(work.drafter.method, blocks)
    again = f"the last block ({lost} tokens)"
    if len(blocks) > 1:
        again = f"up to {lost} tokens in each of {len(blocks)} KV cache groups"
    because = (
        f"{found.says} ({found.source}); with the drafter each hit recomputes {again}; deploy "
        "checks it in the proof"
    )
    yield Reason(what=f"--{PREFIX_CACHING}", value="true", because=because)


def as_text(value: Value) -> str:
    """A value as text in an argv or an environment."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def as_arguments(name: str, value: Value) -> list[str]:
    """One setting as arguments: ``--name``, ``--no-name``, or ``--name value``."""
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", as_text(value)]


def _reason(what: str, setting: EngineSetting) -> Reason:
    return Reason(what=what, value=as_text(setting.value), because=setting.because)
