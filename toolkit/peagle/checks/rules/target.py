"""The target: its checkpoint, its quantization, and what vLLM knows about its class."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from peagle.case import Case
from peagle.catalog.schema import Architecture
from peagle.checkpoints.architecture import quantization_settings
from peagle.checkpoints.division import (
    EXPERT_PARALLEL,
    division_problem,
    divisions,
    is_expert_parallel,
    sizes_of_heads,
)
from peagle.checkpoints.entries import is_from_checkpoint
from peagle.checkpoints.models import Checkpoint
from peagle.checks.registry import Findings, error, note, rule, warning
from peagle.errors import Fix
from peagle.vllm.facts import architectures
from peagle.vllm.versions import compare

_UNKNOWN = "licence, oldest vLLM, default drafter and the settings of its model card"


@rule("target-not-in-catalogue", about="target", vllm_notices="never")
def target_not_in_catalogue(case: Case) -> Findings:
    """A target that the catalogue does not have, so that only its checkpoint is known.

    vLLM serves it with its own defaults. Its licence, the oldest vLLM that supports it, and
    settings that its model card asks for, such as the parsers of tool calls and reasoning, are
    unknown.
    """
    read, target = case.target_checkpoint, case.target
    if read is None or not is_from_checkpoint(target):
        return
    sizes = "config.json and the weight headers" if read.tensors else "config.json alone"
    message = f"{target.id} is not in the catalogue; sizes are from {sizes}; unknown: {_UNKNOWN}"
    command = ("peagle", "catalog", "init", read.location)
    yield note("target", message, Fix("to state them, write a catalogue entry", command))


@rule("model-not-served", about="version", vllm_notices="at start")
def model_not_served(case: Case) -> Findings:
    """A target whose class this vLLM version does not have.

    vLLM removed it or never had it, and its class in transformers does not allow vLLM's
    attention (_raise_for_unsupported of model_executor/models/registry.py).
    """
    name, version = case.architecture.class_name, case.runtime.vllm
    table = architectures()
    last = table["not_served"].get(name)
    if last and compare(version, last) > 0:
        message = f"vLLM {version} does not serve {name}: the last version that does is {last}"
        yield error("target", message, f"use --vllm {last}, or another model")
    elif last == "" and compare(version, table["versions"]["vllm"]) <= 0:
        message = (
            f"vLLM {version} does not serve {name}: it has no code for this class, and the class "
            "in transformers does not allow vLLM's attention"
        )
        yield error("target", message, "use a model of another architecture")


@rule("target-differs", about="target", vllm_notices="never")
def target_differs(case: Case) -> Findings:
    """A checkpoint that is not the target of the pair.

    vLLM serves any model. Memory, context and head of the plan are for the pair's target: the
    20B and 120B models of one family differ in a few values of config.json.
    """
    checkpoint, target = case.target_checkpoint, case.target
    if checkpoint is None:
        return
    if case.target_read is None:
        message = f"{checkpoint.location} holds a draft head, not the model {target.id}"
        yield error("target", message, "pass the folder of the target")
        return
    differences = ", ".join(_differences(case.architecture, target.architecture))
    message = f"{checkpoint.location} is not {target.id}: {differences}"
    if not differences:
        return
    if not case.own_target:
        message = f"{checkpoint.location} differs from the catalogue's {target.id}: {differences}"
        fix = "correct the catalogue file or its weights; plans use the values of the file"
        yield error("target", message, fix)
    elif _own_pair(case):
        fix = (
            "to plan with this model, write a catalogue file for it; here "
            f"{target.short_name} only determines how the drafter is started"
        )
        yield note("target", message, fix)
    else:
        fix = f"pass the location of {target.id}, or write a catalogue file for this model"
        yield error("target", message, fix)


def _own_pair(case: Case) -> bool:
    """Whether the head that was read fits the target that was read, not the catalogue's."""
    if case.head is None:
        return False
    head, read, listed = case.head.config, case.architecture, case.target.architecture
    sizes = (head.target_hidden_size, head.vocab_size)
    return sizes == (read.hidden_size, read.vocab_size) != (listed.hidden_size, listed.vocab_size)


def _differences(read: Architecture, listed: Architecture) -> Iterator[str]:
    pairs = {
        "class": (read.class_name, listed.class_name),
        "hidden size": (read.hidden_size, listed.hidden_size),
        "layers": (read.layers, listed.layers),
        "attention heads": (read.query_heads, listed.query_heads),
        "vocabulary": (read.vocab_size, listed.vocab_size),
        "experts": (read.experts, listed.experts),
        "key-value heads": (_kv_heads(read), _kv_heads(listed)),
    }
    for name, (value, expected) in pairs.items():
        if value != expected:
            yield f"{name} {value}, not {expected}"


def _kv_heads(architecture: Architecture) -> tuple[int, ...]:
    return tuple(sorted({group.kv_heads for group in architecture.attention}))


_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d{1,9})\.")
_OTHER_TOWERS = ("vision", "visual", "audio", "mtp", "encoder.")


@rule("target-incomplete", about="target", vllm_notices="at start")
def target_incomplete(case: Case) -> Findings:
    """A target whose weights lack layers or embeddings, or have extra layers.

    vLLM rejects missing tensors after it has downloaded and loaded the others, and layers that
    the model does not have.
    """
    checkpoint, depth = case.target_read, case.architecture.layers
    if checkpoint is None or not checkpoint.tensors:
        return
    names = _decoder_tensors(checkpoint.tensors)
    layers = layers_of(names)
    missing = ", ".join(_missing(case, names, layers))
    layer_count = depth + _prediction_layers(checkpoint)
    extra = {layer for layer in layers if layer >= layer_count}
    if missing:
        message = f"the weights at {checkpoint.location} lack {missing}"
    elif extra:
        message = (
            f"the weights at {checkpoint.location} have layers up to {max(extra)}, but "
            f"config.json sets num_hidden_layers to {depth}"
        )
    else:
        return
    fix = "copy the model again: its index, a shard or config.json comes from another model"
    yield error("target", message, fix)


def layers_of(tensors: Iterable[str]) -> set[int]:
    """The numbers of the decoder layers among these names."""
    return {int(match[1]) for match in map(_LAYER.search, _decoder_tensors(tensors)) if match}


def _decoder_tensors(tensors: Iterable[str]) -> list[str]:
    return [name for name in tensors if not any(part in name for part in _OTHER_TOWERS)]


def _prediction_layers(checkpoint: Checkpoint) -> int:
    """Extra layers for multi-token prediction."""
    layers = checkpoint.config.get("num_nextn_predict_layers")
    return layers if type(layers) is int else 0


def _missing(case: Case, names: list[str], layers: set[int]) -> Iterator[str]:
    absent = sorted(set(range(case.architecture.layers)) - layers)
    if not layers:
        yield "every layer"
    elif absent:
        more = " ..." if len(absent) > 3 else ""
        yield f"layers {', '.join(map(str, absent[:3]))}{more}"
    if not any("embed" in name or "wte" in name for name in names):
        yield "the embeddings"
    if not case.architecture.tied_embeddings and not any("lm_head" in name for name in names):
        yield "lm_head"


@rule("cache-estimated", about="target", vllm_notices="never")
def cache_estimated(case: Case) -> Findings:
    """A target with layers whose cache vLLM accounts for in a way that the memory model does not
    know.

    They count as full attention, so the memory shown is more than needed, and the speed has a
    wide range.
    """
    unknown = case.architecture.unknown_cache
    if unknown:
        message = (
            f"how vLLM caches layers of {case.target.id} is not known ({unknown}): each layer "
            "counts as full attention, the largest cache"
        )
        fix = 'compare with "GPU KV cache size" in vLLM\'s log before you choose a smaller instance'
        yield warning("target", message, fix)


_QUANTIZATION = "quantization"
_SAME = {
    "gptq": {"gptq_marlin", "auto_gptq", "marlin", "moe_wna16"},
    "awq": {"awq_marlin", "auto_awq", "marlin", "moe_wna16"},
    "mxfp4": {"gpt_oss_mxfp4"},
}
"""``quant_method`` -> other values with which vLLM loads it (override_quantization_method)."""
_ANY_CHECKPOINT = "humming"
_MODELOPT = "modelopt"
"""vLLM replaces the argument by what the checkpoint's own algorithm needs."""
_STORED = {"awq", "gptq", *_SAME["awq"], *_SAME["gptq"]}
"""Methods of weights that are stored quantized: vLLM does not make them while it loads."""


@rule("quantization-differs", about="target", vllm_notices="at start")
def quantization_differs(case: Case) -> Findings:
    """A --quantization that contradicts the quantization_config of the target's checkpoint.

    vLLM compares both at start (0.28.0, config/model.py, _verify_quantization) and stops.
    """
    asked = case.settings.get(_QUANTIZATION)
    if not isinstance(asked, str) or asked == _ANY_CHECKPOINT:
        return
    if case.target_read is not None:
        stored = quantization_settings(case.target_read.config)
        method = str(stored.get("quant_method", "")).lower()
        unquantized = not stored
    else:
        # The catalogue has the format of the weights, which several methods may share.
        method, unquantized = case.target.quantization or "", case.target.quantization is None
        if method not in _SAME and asked not in _STORED:
            return
    if unquantized and asked in _STORED:
        message = f"--{_QUANTIZATION} {asked}, but the target's weights are not quantized"
        yield error("target", message, f"leave --{_QUANTIZATION} out, or use weights in {asked}")
    elif method and method != _MODELOPT and asked not in {method, *_SAME.get(method, ())}:
        message = f"--{_QUANTIZATION} {asked} contradicts the target's config.json: {method}"
        yield error("target", message, f"leave --{_QUANTIZATION} out: vLLM reads it in config.json")


@rule("quantization-block", about="load", vllm_notices="at start")
def quantization_block(case: Case) -> Findings:
    """Tensor parallelism over a number of GPUs that cuts a block of quantized weights, an expert
    or a recurrent head in two.

    vLLM rejects it while it builds the layers, minutes into the start.
    """
    shape, size = case.architecture, case.tensor_parallel_size
    whole_experts = is_expert_parallel(case.settings)
    gpus = max(size, case.instance.gpu_count if case.instance else size)
    others = [s for s in sizes_of_heads(shape, gpus) if s > size]
    for tried in (size, *others):
        if shape.query_heads % tried:
            continue  # tensor-parallel reports it
        problem = division_problem(shape, tried, whole_experts)
        if problem is None:
            continue
        # Where vLLM refuses every size, divisions still has the smallest.
        works = [
            str(s)
            for s in divisions(shape, gpus, whole_experts)
            if division_problem(shape, s, whole_experts) is None
        ]
        message = f"{tried} GPUs cannot share the weights of {case.target.id}: {problem}"
        fix = f"use a tensor-parallel size that works ({', '.join(works)})"
        if not works:
            fix = "use weights with another quantization, or unquantized ones"
        if not whole_experts and division_problem(shape, tried, True) is None:
            fix += f", or give each GPU whole experts with --set {EXPERT_PARALLEL}=true"
        if tried == size:
            yield error("tensor_parallel_size", message, fix)
        else:
            yield note("tensor_parallel_size", message, fix)
        return
