"""``peagle fit``: the memory of one GPU, the cost of speculation, and changes that make a pair fit.

The findings are those of ``peagle check`` that concern memory: an estimate for a pair that cannot
run is worthless.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field, InstanceOf

from peagle.case import Case, build_case
from peagle.catalog import find_instance, find_pair, pair_name
from peagle.catalog.schema import Catalog, Drafter, Pair
from peagle.catalog.tables import Instance, InstanceTable
from peagle.checkpoints.architecture import division_problem, divisions, read_quantization
from peagle.checkpoints.entries import drafter_from_checkpoint, own_drafter, target_from_checkpoint
from peagle.checkpoints.models import ReadCheckpoint
from peagle.checks import About, check
from peagle.errors import Fix, OptionMissing, OptionsConflict, UserError
from peagle.findings import Finding, errors, severity, warning
from peagle.fit.building import fit_case, located, nearest_gpu, unknown_quantization
from peagle.fit.estimate import (
    Comparison,
    Fit,
    FitCase,
    compare,
    compute_fit,
    missing_bytes,
    refusal_reason,
)
from peagle.frozen import Frozen
from peagle.options import EngineOptions, check_numbers, engine_option
from peagle.vllm.defaults import GPU_MEMORY_UTILIZATION, extra_slots, schedules_ahead
from peagle.vllm.gpus import needed_capability
from peagle_serve.heads import is_head


class Advice(Frozen):
    """One change that makes the case fit: the option ``knob``, its ``value`` and the cache."""

    knob: str
    value: str
    kv_cache_tokens: int
    max_concurrency: float

    @property
    def options(self) -> tuple[str, ...]:
        """The change as command-line arguments."""
        flag = "--tensor-parallel-size" if self.knob == "tp" else f"--{self.knob}"
        if self.value == self.knob:
            return (flag,)
        return flag, self.value.partition(",")[0] if self.knob == "instance-type" else self.value

    @property
    def option(self) -> str:
        """The change as a command-line option, for people."""
        flag, *values = self.options
        return f"{flag} {self.value}" if values else flag


_FIELDS = {"tp": "tensor_parallel_size", "max-num-seqs": "concurrency"}
"""Field of an option of advice, where it has another name."""

_ENGINE_SETTINGS = (
    "kv_cache_dtype", "max_num_batched_tokens", "gpu_memory_utilization", "enforce_eager",
)  # fmt: skip
"""Options that are also settings of the case and fields of EngineConfig."""

_SETTINGS = (
    "vllm", "gpu_memory_utilization", "max_model_len", "max_num_seqs", "max_num_batched_tokens",
    "kv_cache_dtype", "k",
)  # fmt: skip
"""Fields of EngineConfig in the JSON document."""

MAX_GPUS = 8
"""GPUs of the largest instance type, used when none is given."""


class FitOptions(EngineOptions):
    """What to estimate; without a pair, ``target`` names a model. ``None`` for
    ``drafter_embeddings`` reads them from the headers."""

    TAKES = (
        "gpu_memory_gib", "instance_type", "tensor_parallel_size", "gpu_memory_utilization",
        "max_model_len", "vllm", "concurrency", "max_num_batched_tokens", "k", "kv_cache_dtype",
        "speculation", "text_only", "enforce_eager", "compiled", "target", "drafter",
        "drafter_embeddings", "settings",
    )  # fmt: skip

    gpu_memory_gib: float | None = engine_option(
        "gib", "Memory of one GPU as CUDA sees it, such as 139.8 for an H200."
    )
    gpu_memory_utilization: float | None = engine_option(
        "share",
        "Share of the GPU's memory that vLLM may use.  "
        f"[default: {GPU_MEMORY_UTILIZATION}, vLLM's default]",
    )
    concurrency: int | None = engine_option(
        "requests", "Concurrent requests.", name="max-num-seqs concurrency"
    )
    max_num_batched_tokens: int | None = engine_option(
        "tokens", "Maximum tokens per scheduler step."
    )
    kv_cache_dtype: str | None = engine_option("dtype", "Data type of the KV cache.")
    text_only: bool = engine_option("switch", "Text input only, for multimodal targets.")
    enforce_eager: bool = engine_option("switch", "Disable CUDA graphs and compilation.")
    compiled: bool = engine_option("switch", "Assume a warm compile cache.")
    drafter_embeddings: Literal["shared", "own"] | None = engine_option(
        "choice",
        "Whether the head has its own embeddings, if no weight header is available.  "
        "[default: own]",
    )


class FitReport(Fit):
    """The fit, the case without speculation, the reason for a refusal, advice and findings;
    ``settings`` are the engine's. The GPU is guessed without an ``instance_type``."""

    pair: str
    instance_type: str | None
    gpu_guessed: bool
    settings: dict[str, Any]
    without_speculation: Comparison | None
    refusal: str | None
    advice: tuple[Advice, ...]
    findings: tuple[Finding, ...]
    case: InstanceOf[FitCase] = Field(exclude=True)

    def __repr__(self) -> str:
        summary = self.refusal or f"the cache holds {self.kv_cache_tokens:,} tokens"
        return f"<FitReport {self.pair} on {self.gpu}: {summary}>"


def fit(options: FitOptions, catalog: Catalog, read: ReadCheckpoint) -> FitReport:
    """The memory report for these options; ``read`` reads the locations that they name. Raises
    NotFound, UserError and CheckpointError."""
    check_numbers(options)
    pair = find_pair(catalog, options.pair) if options.pair else None
    _refuse_contradictions(options, pair)
    target = read(options.target) if options.target else None
    if target is not None and is_head(target.config):
        message = f"--target {target.location} holds a draft head, not a model"
        fix = "pass it with --drafter, and its target model with --target"
        raise UserError(message, fix, "head-not-a-target")
    if target is None and pair is None:
        example = Fix("for example", ("peagle", "fit", "tiny"))
        raise OptionMissing("specify PAIR, or a folder with --target", example)
    head = read(options.drafter) if options.drafter else None
    read_files = {"target_checkpoint": target, "drafter_checkpoint": head}
    options = options.model_copy(update=read_files)
    case, fitted = _cases(options, catalog, pair)
    refusal, memory = refusal_reason(fitted), compute_fit(fitted)
    if pair is None:
        title = f"{options.target}+{options.drafter}" if fitted.drafter else str(options.target)
    else:
        title = pair_name(pair.target, pair.drafter if options.speculation else None)

    def changed(knob: str, value: object) -> FitCase | None:
        """The case as if the option were given; ``None`` if it contradicts others, or if a rule
        about load or version rejects it."""
        change = {_FIELDS.get(knob) or knob.replace("-", "_"): True if value == knob else value}
        if knob == "no-speculation":
            change = {"speculation": False}
        if knob == "instance-type":
            change["gpu_memory_gib"] = None
        other = options.model_copy(update=change)
        try:
            _refuse_contradictions(other, pair)
            changed_case, changed_fit = _cases(other, catalog, pair)
        except UserError:
            return None
        return None if errors(_check_rules(changed_case, "load")) else changed_fit

    advice: tuple[Advice, ...] = ()
    if refusal:
        most = fitted.engine.gpu_count if options.instance_type else MAX_GPUS
        advice = advise(fitted, changed, catalog.instances, most)
    # A version's warnings concern what is served, not memory.
    findings = [
        *_check_rules(case, "target", "head", "load"),
        *_estimated(case),
    ]
    engine = fitted.engine
    return FitReport(
        **dict(memory),
        pair=title,
        instance_type=options.instance_type,
        gpu_guessed=options.instance_type is None,
        settings={
            **{name: getattr(engine, name) for name in _SETTINGS},
            "async_scheduling": schedules_ahead(engine, fitted.drafter),
        },
        case=fitted,
        without_speculation=compare(fitted, memory),
        refusal=refusal,
        advice=advice,
        findings=tuple(sorted(findings, key=severity)),
    )


def _refuse_contradictions(options: FitOptions, pair: Pair | None) -> None:
    """Raise UserError for options that cannot be combined, and for missing hardware."""
    contradictions = {
        "--k and --no-speculation": options.k and not options.speculation,
        "--drafter and --no-speculation": options.drafter and not options.speculation,
        "--drafter-embeddings and --no-speculation": options.drafter_embeddings
        and not options.speculation,
        "--enforce-eager and --compiled": options.enforce_eager and options.compiled,
        "--gpu-memory-gib and --instance-type": options.gpu_memory_gib and options.instance_type,
    }
    for flags, are_combined in contradictions.items():
        if are_combined:
            raise OptionsConflict(f"{flags} cannot be combined", "use one of the two")
    drafts = options.drafter or (pair and pair.drafter) or not options.speculation
    if (options.k or options.drafter_embeddings) and options.target and not drafts:
        message = "--k and --drafter-embeddings need a drafter"
        raise OptionMissing(message, "add --drafter with its location")
    if options.instance_type is None and options.gpu_memory_gib is None:
        raise OptionMissing(
            "specify the hardware with --gpu-memory-gib or --instance-type",
            "for example: --instance-type ml.g7e.2xlarge",
        )


def _cases(options: FitOptions, catalog: Catalog, pair: Pair | None) -> tuple[Case, FitCase]:
    """The case, with the engine settings that the memory model used, and its memory."""
    target = longest = pair.target if pair else None
    model, head = options.target_checkpoint, options.drafter_checkpoint
    if model is not None:
        with located(model):
            longest = target_from_checkpoint(model)
    assert longest is not None
    target = target or longest
    if (gib := options.gpu_memory_gib) is None:
        gpu = find_instance(catalog.instances, str(options.instance_type))
    else:
        needed = needed_capability(target.dtype, target.quantization)
        gpu = nearest_gpu(catalog.instances, gib, needed)
    drafter: Drafter | None = None
    if not options.speculation:
        head = None
    elif head is None:
        drafter = pair.drafter if pair else None
    else:
        kinds = [kind for kind in target.drafters if kind.method == "eagle3"]
        with located(head):
            if kinds:
                kind = next((kind for kind in kinds if pair and kind == pair.drafter), kinds[0])
                drafter = own_drafter(head.location, target, kind, head)
            else:
                drafter = drafter_from_checkpoint(head)
    settings = dict(options.settings)
    for name in _ENGINE_SETTINGS:
        if value := getattr(options, name):
            settings[name.replace("_", "-")] = str(value)
    most = longest.architecture.max_positions
    length = options.max_model_len or min(target.default_max_model_len, most)
    decided = {"settings": settings, "max_model_len": length, "drafter_checkpoint": head}
    case = build_case(catalog, target, drafter, options.model_copy(update=decided), gpu)
    fitted = fit_case(
        case,
        gpu,
        gib,
        own_matrices={"own": True, "shared": False}.get(options.drafter_embeddings or ""),
        text_only=options.text_only,
        compiled=options.compiled,
    )
    fitted = _on_gpus(fitted, options)
    engine = fitted.engine
    used = {name.replace("_", "-"): getattr(engine, name) for name in _ENGINE_SETTINGS}
    size, planned = engine.tensor_parallel_size, {**case.settings, **used}
    return replace(case, tensor_parallel_size=size, settings=planned), fitted


def _on_gpus(case: FitCase, options: FitOptions) -> FitCase:
    """The case on the user's number of GPUs, else on the fewest that fit."""
    asked_size = options.tensor_parallel_size
    most = case.engine.gpu_count if options.instance_type or not asked_size else MAX_GPUS
    shape, whole = case.target.architecture, case.engine.expert_parallel
    sizes = divisions(shape, most, whole)
    if asked_size and asked_size not in sizes:
        problem = division_problem(shape, asked_size, whole) if asked_size <= most else None
        problem = problem or f"--tp {asked_size} is not possible on {most} GPUs"
        raise UserError(problem, f"use {', '.join(map(str, sizes))}", code="tensor-parallel")
    cases = [
        case._replace(
            engine=case.engine._replace(
                tensor_parallel_size=size, gpu_count=max(case.engine.gpu_count, size)
            ),
        )
        for size in ([asked_size] if asked_size else sizes)
    ]
    fitting = (case for case in cases if compute_fit(case).fits)
    # If something other than memory prevents the fit, more GPUs do not help.
    enough = (case for case in cases if not missing_bytes(case))
    return next(fitting, None) or next(enough, cases[-1])


def _check_rules(case: Case, *subjects: About) -> list[Finding]:
    """Errors and warnings about the subjects, and errors about versions and the GPU; images and
    AMIs do not change its memory."""
    findings = [
        finding
        for subject in subjects
        for finding in check(case, about=subject)
        if finding.level != "note"
    ]
    findings += errors(check(case, about="version"))
    return findings + errors(check(case, only={"gpu-too-old"}))


def _estimated(case: Case) -> Iterator[Finding]:
    """Sizes of quantized weights are those of the files, not those that vLLM allocates."""
    target, head = case.target_checkpoint, case.drafter_checkpoint
    kinds = {
        "target": unknown_quantization(target) if target else None,
        "drafter": read_quantization(head.config) if head else None,
    }
    for where, kind in kinds.items():
        if kind:
            message = f"the size of weights quantized with {kind} is that of the files"
            fix = "expect a different size in vLLM, which may repack them"
            yield warning("quantization-estimated", where, message, fix)


ApplyChange = Callable[[str, object], FitCase | None]
"""(setting, new value) -> the case with that single change and its consequences, such as the
defaults of a different GPU. ``None`` for a change that is rejected, but not because of memory."""

_HIGHEST_PERCENT = 97
"""Of the GPU memory; above it, other processes and late CUDA graphs run out of memory."""

MAX_K_TRIED = 64
"""The largest K to try: the catalogue's heads are trained for at most 18. Every smaller K is tried,
since a larger K can take less memory: CUDA graphs are captured for whole steps of K + 1 tokens."""

_MILDEST_FIRST = (
    "gpu-memory-utilization", "max-num-seqs", "max-num-batched-tokens", "max-model-len",
)  # fmt: skip
"""What to change first: these keep target, drafter, K, precision and GPUs. The context is the last
of them, since requests may need all of it."""

_VIDEO_TOKENS = 32 * 78
"""Tokens of Gemma-4's longest video, which a step must hold whole: 32 frames of 70 tokens and their
delimiters (get_mm_max_tokens_per_item of gemma4_mm.py; v1/core/encoder_cache_manager.py)."""


def advise(
    case: FitCase,
    apply_change: ApplyChange,
    table: InstanceTable | None = None,
    max_gpus: int = MAX_GPUS,
) -> tuple[Advice, ...]:
    """The changes that each make the case fit, the smallest of each setting; empty when it fits.
    ``table`` lists the instance types to consider, ``max_gpus`` is the number of GPUs available."""
    if compute_fit(case).fits:
        return ()
    engine, target, drafter = case.engine, case.target, case.drafter
    images = engine.images and target.is_multimodal

    def first(setting: str, values: Iterable[object]) -> Advice | None:
        """Advice with the first value that makes the case fit."""
        for value in values:
            changed = apply_change(setting, value)
            fit = compute_fit(changed) if changed else None
            if fit and fit.fits:
                text, instance = str(value), instances.get(str(value))
                if instance and instance.gpu_count > 1:
                    gpus = f"{fit.tensor_parallel_size} of its {instance.gpu_count} GPUs"
                    text = f"{text}, {gpus}"
                return Advice(
                    knob=setting,
                    value=text,
                    kv_cache_tokens=fit.kv_cache_tokens,
                    max_concurrency=fit.max_concurrency,
                )
        return None

    def cost(instance: Instance) -> tuple[float, int, str]:
        price = min((p.usd_per_hour for p in instance.prices), default=float("inf"))
        return price, instance.gpu_count * instance.gpu_memory_mib, instance.type

    needed = needed_capability(target.dtype, target.quantization)
    instances = {
        instance.type: instance
        for instance in sorted(table.instances if table else (), key=cost)
        if instance.capability >= needed
    }
    # The longest context that fits and that both models support, by binary search.
    supported = [target.architecture.max_positions]
    supported += [drafter.shape.max_positions] if drafter else []
    low, high = 1, min(engine.max_model_len - 1, *supported)
    context: Advice | None = None
    while low <= high:
        middle = (low + high) // 2
        advice = first("max-model-len", (middle,))
        context = advice or context
        low, high = (middle + 1, high) if advice else (low, middle - 1)
    # A step holds a token per request, one beside the draft slots, and with images a whole video:
    # the largest below the present one, else as many as needed.
    now, video = engine.max_num_batched_tokens, _VIDEO_TOKENS if images else 1
    least = max(extra_slots(engine, drafter) + 1, engine.max_num_seqs, video)
    powers = [1 << power for power in range((max(now, 2 * least) - 1).bit_length() - 1, -1, -1)]
    steps = [step for step in powers if least <= step < now] or [1 << (least - 1).bit_length()]
    shares = range(round(engine.gpu_memory_utilization * 100) + 1, _HIGHEST_PERCENT + 1)
    halvings = range(1, engine.max_num_seqs.bit_length())
    sizes = divisions(target.architecture, max_gpus, engine.expert_parallel)
    tried: dict[str, Iterable[object]] = {
        "k": range(min(engine.k - 1, MAX_K_TRIED), 0, -1),
        "kv-cache-dtype": [] if engine.kv_cache_dtype.startswith("fp8") else ["fp8"],
        "gpu-memory-utilization": (share / 100 for share in shares),
        "max-num-seqs": (engine.max_num_seqs >> n for n in halvings),
        "max-num-batched-tokens": steps,
        "tp": [size for size in sizes if size > engine.tensor_parallel_size],
        "no-speculation": ["no-speculation"] if engine.k else [],
        "text-only": ["text-only"] if images else [],
        "enforce-eager": [] if engine.enforce_eager else ["enforce-eager"],
        "instance-type": instances,  # the cheapest; types without a price come last
    }
    changes = (context, *(first(setting, values) for setting, values in tried.items()))
    return tuple(advice for advice in changes if advice)


def mildest(advice: Sequence[Advice]) -> Advice | None:
    """The change to suggest first; ``None`` without any."""
    order = {knob: place for place, knob in enumerate(_MILDEST_FIRST)}
    return min(advice, key=lambda change: order.get(change.knob, len(order)), default=None)
