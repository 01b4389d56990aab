"""The layout of a head: its config.json and tensors as vLLM reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from pathlib import PurePath

from peagle.case import Case
from peagle.checkpoints.heads import Head, attention_of
from peagle.checkpoints.models import is_folder
from peagle.checks.facts import (
    COPY_AGAIN,
    COPY_CONFIG,
    OTHER_HEAD,
    layers_key,
    other_shape,
    pair_problem,
)
from peagle.checks.head_layout import (
    allowed,
    cache_groups,
    has_own_rule,
    layers_in,
    plain_name,
    required,
    stored_width,
)
from peagle.checks.registry import Findings, error, for_head, note, rule, warning
from peagle.checks.rules.version import ONE_GROUP, are_layers_grouped, kv_group_rule
from peagle.errors import Fix
from peagle_serve.checkpoint import first_names
from peagle_serve.heads import (
    MASK,
    MIXED_FILES,
    HeadConfig,
    classes_of,
    is_head,
    layer_of,
    vllm_class,
)


@rule("head-not-a-drafter", about="head", vllm_notices="at start")
def head_not_a_drafter(case: Case) -> Findings:
    """A drafter location that is not a draft head.

    Given a model's folder or an empty config as the head, vLLM fails while it loads the
    weights, after minutes on a paid instance.
    """
    checkpoint = case.drafter_checkpoint
    if checkpoint is None or not case.is_eagle or is_head(checkpoint.config):
        return
    what = ", ".join(classes_of(checkpoint.config)) or "no class"
    message = (
        f"{checkpoint.location} is not a draft head: its config.json names {what} and has no key "
        "of an EAGLE-3 or P-EAGLE head"
    )
    yield error("drafter", message, OTHER_HEAD)


@rule("weights-unread", about="head", vllm_notices="at start")
def weights_unread(case: Case) -> Findings:
    """Weights that cannot be checked because they are not stored as safetensors.

    A folder with only config.json has sizes that can be checked, but vLLM cannot serve it.
    Without safetensors vLLM loads ``*.bin`` or ``*.pt`` (0.28.0, default_loader.py), which are
    pickles; the container of this toolkit refuses them, and so do copies to S3.
    """
    for where, checkpoint in (
        ("target", case.target_checkpoint),
        ("drafter", case.drafter_checkpoint),
    ):
        if checkpoint is None or checkpoint.tensors is not None:
            continue
        at, others = checkpoint.location, ", ".join(checkpoint.other_weights[:3])
        message = f"weights not checked: {at} has no *.safetensors, config.json only"
        if not others:
            yield warning(where, message, "copy the weights there before you serve it")
            continue
        message = (
            f"weights not checked: {at} has {others} but no *.safetensors; other formats may run "
            "code when they are loaded, and are not served"
        )
        yield error(where, message, _conversion(at, checkpoint.other_weights[0]))


def _conversion(location: str, file: str) -> Fix:
    """The command that converts to safetensors; ``weights_only`` runs no code of the file. Weights
    in S3 or on the Hub are converted in the folder that they are copied to."""
    folder = location if is_folder(location) and not location.startswith("~") else ""
    source, made = (str(PurePath(folder, name)) for name in (file, "model.safetensors"))
    program = (
        "import torch; from safetensors.torch import save_file; "
        f'tensors = torch.load({json.dumps(source)}, map_location="cpu", weights_only=True); '
        "save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, "
        f"{json.dumps(made)})"
    )
    where = "" if folder else " in their folder"
    sentence = f"convert the weights{where}, with a Python that has torch and safetensors"
    return Fix(sentence, ("python", "-c", program))


@rule("config-incomplete", about="head", vllm_notices="never")
@for_head
def config_incomplete(case: Case, head: Head) -> Findings:
    """A head whose config.json lacks sizes.

    For a missing size vLLM uses the default of the class, such as 32 layers. Weights that no
    file fills stay uninitialized: vLLM starts, and nearly no draft is accepted.
    """
    if any(speculators_layout.check(case)):
        return
    config = head.config
    sizes = {
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.query_heads,
        "intermediate_size": config.intermediate_size,
        "vocab_size": config.vocab_size,
    }
    if missing := [key for key, value in sizes.items() if value is None]:
        yield error("drafter", f"config.json lacks {', '.join(missing)}", COPY_CONFIG)


_SPECULATORS = {
    ("eagle3", "llama"): "Eagle3LlamaForCausalLM",
    ("eagle3", "qwen3"): "Eagle3Qwen3ForCausalLM",
    ("peagle", "llama"): "PeagleLlamaForCausalLM",
    ("peagle", "qwen3"): "PeagleQwen3ForCausalLM",
}
"""Type of the speculators format and model_type of its layers -> vLLM's class (algos.py)."""


@rule("method-not-for-architecture", about="head", vllm_notices="at start")
@for_head
def method_not_for_architecture(case: Case, head: Head) -> Findings:
    """A head class that vLLM does not have, as named in config.json or implied by the format.

    vLLM prefixes a class name with Eagle3 unless the name begins or ends with it, so that a
    class of a training framework, such as PEagleDraftModel, becomes one that vLLM rejects at
    start.
    """
    if head.config.speculators not in (None, "eagle3", "peagle"):
        return
    classes = class_names(head.config)
    for entry in method_not_for_architecture.entries(case):
        if not set(classes) & set(entry.names):
            who = f"{head.location} ({', '.join(classes) or 'no class'})"
            yield method_not_for_architecture.of_entry(entry, "drafter", who)


def class_names(head: HeadConfig) -> tuple[str, ...]:
    """The class names that vLLM looks up for the head."""
    if head.speculators is not None:
        made = _SPECULATORS.get((head.speculators, head.model_type))
        return (made or f"{head.speculators} with layers of {head.model_type}",)
    return tuple(map(vllm_class, head.classes))


@rule("speculators-type", about="head", vllm_notices="at start")
@for_head
def speculators_type(case: Case, head: Head) -> Findings:
    """A head in the speculators format that is neither eagle3 nor peagle.

    vLLM rejects an unknown type at start, and starts another kind of drafter for other known
    types.
    """
    kind = head.config.speculators
    if kind not in (None, "eagle3", "peagle"):
        message = f"speculators_model_type is {kind!r}, neither eagle3 nor peagle"
        yield error("drafter", message, "use an EAGLE-3 or P-EAGLE head")


_SPECULATORS_PARTS = {
    "speculators_model_type": str,
    "speculators_config": Mapping,
    "transformer_layer_config": Mapping,
}
_OTHER_FORMATS_TOO = "transformer_layer_config"


@rule("speculators-layout", about="head", vllm_notices="at start")
@for_head
def speculators_layout(case: Case, head: Head) -> Findings:
    """A head in the speculators format whose config.json lacks required parts.

    vLLM recognizes the format by speculators_config, the kind of head by
    speculators_model_type, and takes its sizes from transformer_layer_config. It does not start
    without any of them.
    """
    config = head.document
    parts = _SPECULATORS_PARTS
    missing = [part for part, kind in parts.items() if not isinstance(config.get(part), kind)]
    present = [part for part in parts if config.get(part) is not None]
    if missing and present not in ([], [_OTHER_FORMATS_TOO]):
        message = f"config.json is in the speculators format but lacks {' and '.join(missing)}"
        yield error("drafter", message, COPY_CONFIG)


@rule("norm-before-residual", about="head", vllm_notices="never")
@for_head
def norm_before_residual(case: Case, head: Head) -> Findings:
    """An EAGLE-3 speculators head whose config.json lacks norm_before_residual.

    vLLM then assumes true. A head trained with false drafts worse (acceptance length 2.02
    instead of 3.07 on the tiny pair), without a warning.
    """
    if head.config.speculators == "eagle3" and "norm_before_residual" not in head.document:
        message = "norm_before_residual is not set; vLLM assumes true"
        fix = "if acceptance is below the published value, set it to false, as older heads need"
        yield note("drafter", message, fix)


@rule("layer-types", about="head", vllm_notices="at start")
@for_head
def layer_types(case: Case, head: Head) -> Findings:
    """A head whose layer_types do not fit its layers, or need a sliding_window that is not there.

    vLLM and transformers reject such a config.json at start.
    """
    if pair_problem(case, head, "layer-types") is not None:
        yield error("drafter", f"config.json: {head.config.window_problem}", COPY_CONFIG)


MANY_GROUPS = 16
"""Chosen."""


@rule("head-window", about="head", vllm_notices="never")
@for_head
def head_window(case: Case, head: Head) -> Findings:
    """A head whose layers attend to a sliding window.

    Such a head sees the last tokens of a context only, so acceptance falls in longer ones. A
    few sliding layers beside full ones also make vLLM divide the KV cache into small groups,
    each with a block table to fill in every step.
    """
    window = max((size for size in head.config.windows if size), default=None)
    if window is not None and case.max_model_len > window:
        message = (
            f"the head sees only the last {window:,} tokens, and requests may have "
            f"{case.max_model_len:,}: acceptance falls in longer ones"
        )
        fix = "measure acceptance at your lengths, use a head with full attention, or lower "
        fix += f"--max-model-len to {window}"
        yield warning("drafter", message, fix)
    yield from _many_groups(case, head)


def _many_groups(case: Case, head: Head) -> Findings:
    draft = attention_of(head.config)
    if not are_layers_grouped(case) or len(draft) != 1 or draft[0].window is None:
        return
    for entry in kv_group_rule.entries(case):
        ratio = float(entry.value or 0)
        groups = cache_groups(case.architecture.attention, draft, ratio)
        if groups is not None and groups.draft == 1 and groups.total > MANY_GROUPS:
            message = f"few sliding layers: {groups.total} groups, each with a block table per step"
            fix = Fix(
                f"use --set {ONE_GROUP}=true: one group, in which sliding layers keep all tokens",
                options=("--set", f"{ONE_GROUP}=true"),
            )
            yield warning("drafter", message, fix)


@rule("auxiliary-states-off", about="head", vllm_notices="at start")
@for_head
def auxiliary_states_off(case: Case, head: Head) -> Findings:
    """A P-EAGLE head that turns auxiliary hidden states off.

    vLLM has no parallel drafting without them (use_aux_hidden_state) and does not start.
    """
    if case.is_parallel and head.config.parallel_drafting and not head.config.uses_auxiliary:
        message = "the head drafts in parallel but sets use_aux_hidden_state to false"
        nested = "transformer_layer_config." if head.config.speculators_format else ""
        key = f"{nested}eagle_config.use_aux_hidden_state"
        fix = f"set {key} to true if the head was trained with it"
        yield error("drafter", message, fix)


@rule("aux-layer-count", about="head", vllm_notices="on a request")
@for_head
def aux_layer_count(case: Case, head: Head) -> Findings:
    """A head that reads a different number of target layers from what its ``fc`` is built for.

    vLLM takes the layers from one key of config.json and the width of ``fc`` from another: in a
    head with Llama layers from num_aux_hidden_states or the list in eagle_config, else 3; in
    one with Qwen3 layers from the list that it reads. When they differ, vLLM starts and crashes
    on the first request.
    """
    if pair_problem(case, head, "aux-layer-count") is None:
        return
    depth, built_for = case.architecture.layers, head.config.built_for
    layers = head.layers_read(depth)
    message = (
        f"vLLM reads {len(layers)} layers of the target and builds fc for {built_for}: it starts, "
        "and crashes on the first request"
    )
    yield error("drafter", message, list_layers(head, layers, depth))


def list_layers(head: Head, layers: tuple[int, ...], depth: int) -> str:
    """How to list as many layers as the weights of ``fc`` take; ``layers`` are listed now."""
    fc, width = head.shape("fc.weight"), head.config.target_hidden_size
    states = fc[-1] // width if fc and width else len(layers)
    key = layers_key(head, states)
    if states == len(layers):
        counts = [name for name in _COUNTS if head.counts_with(name)]
        remove = f", and remove {' and '.join(counts)}" if counts else ""
        return f"in config.json, set {key} to {list(layers)}{remove}"
    # Training lists the last layer too: its hidden states are what the head learns to predict.
    drop = f": without {depth}, the target's last" if layers[-1] == depth else ""
    return f"in config.json, set {key} to the {states} layers that fc was trained on{drop}"


_COUNTS = ("num_aux_hidden_states", "num_aux_layers")
"""Keys with which a config overrides the number of listed layers."""


@rule("aux-layers-collide", about="head", vllm_notices="on a request")
@for_head
def aux_layers_collide(case: Case, head: Head) -> Findings:
    """Auxiliary layers that are not distinct, including those that vLLM uses by default.

    For a head that lists none, vLLM reads layers 2, L/2 and L-3. In a shallow target two of
    these are equal: ``fc`` gets fewer hidden states than it expects, drafts are wrong, and the
    engine crashes on the first prompt whose size does not divide.
    """
    if (problem := pair_problem(case, head, "aux-layers-collide")) is not None:
        source = "listed" if head.config.auxiliary_layers else "the default"
        message = (
            f"the target's layers {problem['layers']} ({source}) are not distinct: "
            f"{case.target.id} has {problem['num_hidden_layers']} layers"
        )
        fix = f"list the trained layers in {layers_key(head, head.config.built_for)}"
        yield error("drafter", message, fix)


@rule("aux-layers-order", about="head", vllm_notices="never")
@for_head
def aux_layers_order(case: Case, head: Head) -> Findings:
    """Auxiliary layers that config.json does not list in ascending order.

    vLLM collects the hidden states as the target computes them, in ascending order, whatever
    the list says. A head whose ``fc`` was trained with the listed order gets them in the wrong
    places.
    """
    layers = head.layers_read(case.architecture.layers)
    ascending = sorted(set(layers))
    if list(layers) == ascending or len(ascending) < len(layers):
        return  # another rule reports layers that are listed twice
    message = (
        f"the target's layers are listed as {list(layers)}, but vLLM reads them as {ascending}: a "
        "head that was trained in the listed order loses acceptance"
    )
    fix = (
        "sort the list; if the head was trained in the listed order, sort the columns of fc.weight "
        "and mask_hidden with it, one block for each layer"
    )
    yield warning("drafter", message, fix)


@rule("aux-layers-outside", about="head", vllm_notices="on a request")
@for_head
def aux_layers_outside(case: Case, head: Head) -> Findings:
    """Auxiliary layers that the target does not have, including those that vLLM uses by default.

    Layer i is the hidden state after i layers, so 0 to L exist. For any other layer vLLM passes
    one hidden state too few, and the engine crashes on a request.
    """
    if (problem := pair_problem(case, head, "aux-layers-outside")) is not None:
        depth = problem["num_hidden_layers"]
        message = f"the head reads layers {problem['layers']}; {case.target.id} has {depth} layers"
        yield error("drafter", message, OTHER_HEAD)


@rule("fc-width", about="head", vllm_notices="at start")
@for_head
def fc_width(case: Case, head: Head) -> Findings:
    """An ``fc`` whose input width is not auxiliary layers x the target's width.

    vLLM builds ``fc`` from config.json and rejects weights of a different shape when it loads
    them.
    """
    config, fc = head.config, head.shape("fc.weight")
    if fc is None or config.quantized or not config.uses_auxiliary:
        return
    if config.hidden_size is None or config.target_hidden_size is None:
        return
    states, expected = config.built_for, config.built_for * config.target_hidden_size
    if fc == (config.hidden_size, expected) or stored_width(head) is not None:
        return
    if any(aux_layer_count.check(case)):
        return
    width = case.architecture.hidden_size
    if fc == (config.hidden_size, states * width):
        message = (
            f"config.json sets target_hidden_size to {config.target_hidden_size}, but fc.weight "
            f"takes {states} hidden states of {width}, the width of {case.target.id}"
        )
        fix = f"set target_hidden_size to {width}, or copy the head again"
        yield error("drafter", message, fix)
    else:
        shape = f"{[config.hidden_size, expected]}: {states} hidden states of"
        message = other_shape(head, "fc.weight", f"{shape} {config.target_hidden_size:,}")
        yield error("drafter", message, MIXED_FILES)


@rule("head-without-mask", about="head", vllm_notices="at start")
@for_head
def head_without_mask(case: Case, head: Head) -> Findings:
    """A P-EAGLE head without mask_hidden, the tensor of its masked slots.

    vLLM rejects it when it loads the weights, after minutes on a paid instance.
    """
    if case.is_parallel and head.config.parallel_drafting and head.has_mask is False:
        message = f"the head drafts in parallel but its weights have no {MASK}"
        yield error("drafter", message, f"copy the head again, or export it with {MASK}")


@rule("mask-shape", about="head", vllm_notices="at start")
@for_head
def mask_shape(case: Case, head: Head) -> Findings:
    """A mask_hidden whose shape is not [1, 1, auxiliary layers x the target's width].

    vLLM copies it into a buffer of that size. It rejects a different size at start, but
    broadcasts a single value without a warning. If fc has the same wrong width, the rule for fc
    reports it.
    """
    name, width, states = head.named(MASK), head.config.target_hidden_size, head.config.built_for
    if name is None or not case.is_parallel or not width:
        return
    shape, fc = head.tensors[name].shape, head.shape("fc.weight")
    size, expected = prod(shape), states * width
    if size != expected and (fc is None or fc[-1:] != (size,)):
        message = f"{name} has shape {list(shape)}; the head needs [1, 1, {expected}]"
        yield error("drafter", message, f"copy the head again, or export it with {MASK}")


_EMBEDDINGS = "embed_tokens.weight"


@rule("embeddings-shape", about="head", vllm_notices="at start")
@for_head
def embeddings_shape(case: Case, head: Head) -> Findings:
    """Embeddings of the head whose shape differs from config.json.

    vLLM builds the table from config.json and rejects weights of a different shape when it
    loads them.
    """
    shape = head.shape(_EMBEDDINGS)
    if shape is None or head.config.quantized:
        return
    expected = (head.config.vocab_size or case.architecture.vocab_size, head.config.hidden_size)
    if shape != expected and shape[-1:] != (stored_width(head),):
        fix = "copy the head again, or leave embed_tokens out to share the target's"
        yield error("drafter", other_shape(head, _EMBEDDINGS, list(expected)), fix)


@rule("lm-head-missing", about="head", vllm_notices="never")
@for_head
def lm_head_missing(case: Case, head: Head) -> Findings:
    """A head without lm_head that cannot use the target's.

    vLLM shares the target's. With a reduced vocabulary its rows belong to different tokens, and
    at a different width it does not fit.
    """
    config, vocabulary = head.config, case.architecture.vocab_size
    drafted = config.draft_vocab_size or config.vocab_size
    if not head.tensors or head.named("lm_head") or drafted is None:
        return
    if config.vocab_size in (None, vocabulary) and drafted < vocabulary:
        message = f"the head drafts {drafted:,} of {vocabulary:,} tokens but has no lm_head"
        yield error("drafter", message, "copy the head again, or export it with lm_head")


@rule("layers-mismatch", about="head", vllm_notices="at start")
@for_head
def layers_mismatch(case: Case, head: Head) -> Findings:
    """Weights whose layers differ from num_hidden_layers of config.json.

    vLLM rejects extra layers when it loads them. Missing layers stay uninitialized: vLLM
    starts, and nearly no draft is accepted.
    """
    if not head.tensors or required(head.config) is None:
        return
    layers, expected = layers_in(head.tensors), head.config.layers
    if layers != set(range(expected or 0)):
        message = f"the weights have layers {sorted(layers)}; num_hidden_layers is {expected}"
        yield error("drafter", message, MIXED_FILES)


_ADD_ZEROS = (
    "if the head was trained without it, add it as zeros: with attention_bias vLLM's Llama layers "
    "have it"
)


@rule("tensors-missing", about="head", vllm_notices="never")
@for_head
def tensors_missing(case: Case, head: Head) -> Findings:
    """A head whose weights lack tensors.

    vLLM does not require all of a draft head's tensors. Missing ones stay uninitialized: the
    endpoint becomes healthy, and nearly no draft is accepted. Another rule reports whole
    layers.
    """
    shapes = required(head.config)
    names, layers = {plain_name(name) for name in head.tensors}, layers_in(head.tensors)
    if shapes is None or not names or any(map(_is_merged, names)):
        return
    missing = [name for name in shapes if name not in names and layer_of(name) in {None, *layers}]
    if missing:
        message = f"the weights lack {first_names(missing, 3)}"
        only_output = all(name.endswith("o_proj.bias") for name in missing)
        yield error("drafter", message, _ADD_ZEROS if only_output else COPY_AGAIN)


@rule("tensors-unknown", about="head", vllm_notices="at start")
@for_head
def tensors_unknown(case: Case, head: Head) -> Findings:
    """A head whose weights have tensors that its class does not have.

    vLLM rejects such a tensor when it loads the weights. Other rules report extra layers, and
    biases, which it ignores.
    """
    allowed_names = allowed(head.config)
    unknown = [
        name
        for name in head.tensors
        if plain_name(name) not in allowed_names
        and not has_own_rule(name)
        and (layer_of(name) or 0) < (head.config.layers or 0)
        and not _ignored(name)
    ]
    if allowed_names and unknown:
        message = f"the weights have {first_names(unknown, 3)}, which the class does not have"
        yield error("drafter", message, MIXED_FILES)


def _ignored(name: str) -> bool:
    """Whether vLLM skips the tensor, or has it as a merged one."""
    return _is_merged(name) or name.endswith(".bias") or name.startswith("input_norm.")


@rule("tensor-shape", about="head", vllm_notices="at start")
@for_head
def tensor_shape(case: Case, head: Head) -> Findings:
    """Layer tensors of the head whose shapes differ from config.json.

    vLLM rejects a different shape when it loads the weights. The first layer's attention takes
    embedding and hidden state side by side, so its inputs are twice as wide.
    """
    shapes, width = required(head.config), stored_width(head)
    if shapes is None:
        return
    if width is not None:
        hidden_size = head.config.hidden_size
        message = (
            f"config.json sets hidden_size to {hidden_size}, but the weights have width {width}"
        )
        yield error("drafter", message, f"set hidden_size to {width}, or {MIXED_FILES}")
        return
    stored = {plain_name(name): name for name in head.tensors}
    wrong = [
        name
        for name, shape in shapes.items()
        if name in stored and not has_own_rule(name) and head.shape(stored[name]) != shape
    ]
    if wrong:
        name, others = wrong[0], len(wrong) - 1
        more = f" ({others} other tensors differ too)" if others else ""
        message = other_shape(head, stored[name], f"{list(shapes[name])}{more}")
        yield error("drafter", message, MIXED_FILES)


_FLOATS = frozenset({"BF16", "F16", "F32", "F64"})
_INTEGERS = frozenset({"I64", "I32", "I16"})


@rule("tensor-dtype", about="head", vllm_notices="never")
@for_head
def tensor_dtype(case: Case, head: Head) -> Findings:
    """Tensors of the head in a dtype that vLLM does not compute with.

    vLLM casts 8-bit values, and a floating-point d2t, to its own dtype as they are. Without the
    scales of a quantization_config the values are wrong: vLLM starts, and nearly no draft is
    accepted.
    """
    wrong = (
        (name, tensor.dtype)
        for name, tensor in head.tensors.items()
        if "t2d" not in name and tensor.dtype not in (_INTEGERS if "d2t" in name else _FLOATS)
    )
    name, dtype = next(wrong, ("", ""))
    if name and not head.config.quantized:
        message = f"{name} is {dtype}, but config.json has no quantization_config"
        yield error("drafter", message, "export the head in bfloat16")


_SWITCHES = {"attention_bias": ("q_proj", "k_proj", "v_proj", "o_proj"),
             "mlp_bias": ("gate_proj", "up_proj", "down_proj")}  # fmt: skip
"""Key of config.json -> the projections of a Llama head that have a bias with it."""


@rule("biases-dropped", about="head", vllm_notices="never")
@for_head
def biases_dropped(case: Case, head: Head) -> Findings:
    """Biases in the head's weights for which vLLM has no place.

    vLLM ignores every bias that its class does not have, without a line in its log: a Llama
    head has them only with attention_bias or mlp_bias, a Qwen3 head never on o_proj or in the
    feed-forward block. The head then computes something else than it was trained for.
    """
    shapes = required(head.config)
    dropped = [
        name
        for name in head.tensors
        if shapes is not None
        and name.endswith(".bias")
        and plain_name(name) not in shapes
        and not has_own_rule(name)
        and not _is_merged(name)
        and layer_of(name) in {None, *layers_in(shapes)}
    ]
    if dropped:
        message = f"vLLM ignores {first_names(dropped, 3)}"
        yield warning("drafter", message, _fix(head, dropped))


def _is_merged(name: str) -> bool:
    return ".qkv_proj" in name or ".gate_up_proj" in name


def _fix(head: Head, dropped: list[str]) -> str:
    parts = {name.split(".")[-2] for name in dropped}
    keys = [key for key, names in _SWITCHES.items() if parts & set(names)]
    helps = head.config.model_type == "llama" and parts <= {
        part for key in keys for part in _SWITCHES[key]
    }
    if not helps:
        return "measure acceptance: the head runs without them; train it without biases"
    where = "transformer_layer_config." if head.config.speculators_format else ""
    return f"set {' and '.join(where + key for key in keys)} to true"


_SCALES = ("scale", "qweight", "qzeros", "absmax", "packed")
"""Parts of the names of tensors that belong to quantized weights."""


@rule("quantization-without-scales", about="head", vllm_notices="never")
@for_head
def quantization_without_scales(case: Case, head: Head) -> Findings:
    """A head whose config.json has a quantization_config but whose weights have no scales.

    vLLM treats the weights as quantized and leaves the scales uninitialized: it starts, and
    nearly no draft is accepted.
    """
    if head.config.quantized and head.tensors and not any(map(head.named, _SCALES)):
        message = "config.json has a quantization_config, but the weights have no scales"
        fix = "remove quantization_config, or copy the quantized weights"
        yield error("drafter", message, fix)
