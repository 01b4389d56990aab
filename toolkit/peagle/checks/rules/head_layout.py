"""The layout of a head: its config.json and tensors as vLLM reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from pathlib import PurePath

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checkpoints.models import is_folder
from peagle.checks.head_layout import has_own_rule, plain_name, required, stored_width
from peagle.checks.registry import Findings, error, note, rule, warning
from peagle.errors import Fix
from peagle_serve.checkpoint import first_names
from peagle_serve.heads import (
    AUX_LAYERS,
    DEFAULT_AUXILIARY,
    MASK,
    MIXED_FILES,
    HeadFiles,
    classes_of,
    is_head,
    layer_of,
    vllm_class,
)
from peagle_serve.pair import problems

OTHER_HEAD = "use a head trained for this target"
COPY_AGAIN = "copy the head again, or export it again"
COPY_CONFIG = "copy the head again, including config.json"


def pair_problem(case: Case, head: Head, code: str) -> Mapping[str, object] | None:
    """The values of a problem that the container finds too, if the case has it."""
    shape = case.architecture
    target = {"num_hidden_layers": shape.layers, "hidden_size": shape.hidden_size,
              "vocab_size": shape.vocab_size}  # fmt: skip
    shapes = {name: tensor.shape for name, tensor in head.tensors.items()}
    head_problems = problems(HeadFiles(head.document, shapes), target, case.is_parallel)
    return next((problem.values for problem in head_problems if problem.code == code), None)


def other_shape(head: Head, name: str, expected: object) -> str:
    """The message that the shape of a tensor is not the one that config.json requires."""
    return f"{name} has shape {list(head.shape(name) or ())}; config.json requires {expected}"


@rule("head-not-a-drafter", about="head", vllm_notices="at start")
def head_not_a_drafter(case: Case) -> Findings:
    """A drafter location that is not a draft head."""
    checkpoint = case.drafter_checkpoint
    if checkpoint is not None and case.is_eagle and not is_head(checkpoint.config):
        what = ", ".join(classes_of(checkpoint.config)) or "no class"
        message = (
            f"{checkpoint.location} is not a draft head: its config.json names {what} and has no "
            "key of an EAGLE-3 or P-EAGLE head"
        )
        yield error("drafter", message, OTHER_HEAD)


@rule("weights-unread", about="head", vllm_notices="at start")
def weights_unread(case: Case) -> Findings:
    """Weights that cannot be checked because they are not stored as safetensors.

    Without safetensors vLLM loads ``*.bin`` or ``*.pt`` (0.28.0, default_loader.py), which are
    pickles; the container of this toolkit refuses them, and so do copies to S3.
    """
    for where, checkpoint in (
        ("target", case.target_checkpoint),
        ("drafter", case.drafter_checkpoint),
    ):
        if checkpoint is None or checkpoint.tensors is not None:
            continue
        at, others = checkpoint.location, checkpoint.other_weights
        message = f"weights not checked: {at} has no *.safetensors"
        if not others:
            fix = "copy the weights there before you serve it"
            yield warning(where, f"{message}, config.json only", fix)
            continue
        message += f" but {', '.join(others[:3])}, which may run code when they are loaded"
        # Weights in S3 or on the Hub are converted in the folder that they are copied to.
        folder = at if is_folder(at) and not at.startswith("~") else ""
        source, made = (str(PurePath(folder, name)) for name in (others[0], "model.safetensors"))
        program = (
            "import torch; from safetensors.torch import save_file; "
            f'tensors = torch.load({json.dumps(source)}, map_location="cpu", weights_only=True); '
            "save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, "
            f"{json.dumps(made)})"
        )
        place = "" if folder else " in their folder"
        sentence = f"convert the weights{place}, with a Python that has torch and safetensors"
        yield error(where, message, Fix(sentence, ("python", "-c", program)))


@rule("config-incomplete", about="head", vllm_notices="never")
def config_incomplete(case: Case, head: Head) -> Findings:
    """A head whose config.json lacks sizes.

    vLLM uses the default of the class, such as 32 layers. Weights that no file fills stay
    uninitialized: it starts, and nearly no draft is accepted.
    """
    config = head.config
    sizes = {
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.query_heads,
        "intermediate_size": config.intermediate_size,
        "vocab_size": config.vocab_size,
    }
    missing = [key for key, value in sizes.items() if value is None]
    if missing and not any(speculators_layout.check(case)):
        yield error("drafter", f"config.json lacks {', '.join(missing)}", COPY_CONFIG)


_SPECULATORS = {
    ("eagle3", "llama"): "Eagle3LlamaForCausalLM",
    ("eagle3", "qwen3"): "Eagle3Qwen3ForCausalLM",
    ("peagle", "llama"): "PeagleLlamaForCausalLM",
    ("peagle", "qwen3"): "PeagleQwen3ForCausalLM",
}
"""Type of the speculators format and model_type of its layers -> vLLM's class (algos.py)."""


@rule("method-not-for-architecture", about="head", vllm_notices="at start")
def method_not_for_architecture(case: Case, head: Head) -> Findings:
    """A head class that vLLM does not have, as named in config.json or implied by the format.

    vLLM prefixes a class name with Eagle3 unless the name begins or ends with it. Of the
    speculators format it starts another kind of drafter for types other than eagle3 and peagle.
    """
    config, kind = head.config, head.config.speculators
    if kind not in (None, "eagle3", "peagle"):
        message = f"speculators_model_type is {kind!r}, neither eagle3 nor peagle"
        yield error("drafter", message, "use an EAGLE-3 or P-EAGLE head")
        return
    classes = tuple(map(vllm_class, config.classes))
    if kind is not None:
        made = _SPECULATORS.get((kind, config.model_type))
        classes = (made or f"{kind} with layers of {config.model_type}",)
    for entry in method_not_for_architecture.entries(case):
        if not set(classes) & set(entry.names):
            who = f"{head.location} ({', '.join(classes) or 'no class'})"
            yield method_not_for_architecture.of_entry(entry, "drafter", who)


@rule("speculators-layout", about="head", vllm_notices="at start")
def speculators_layout(case: Case, head: Head) -> Findings:
    """A head in the speculators format whose config.json lacks required parts."""
    kinds = {
        "speculators_model_type": str,
        "speculators_config": Mapping,
        "transformer_layer_config": Mapping,
    }
    config = head.document
    missing = [part for part, kind in kinds.items() if not isinstance(config.get(part), kind)]
    present = [part for part in kinds if config.get(part) is not None]
    if missing and present not in ([], ["transformer_layer_config"]):
        message = f"config.json is in the speculators format but lacks {' and '.join(missing)}"
        yield error("drafter", message, COPY_CONFIG)


@rule("norm-before-residual", about="head", vllm_notices="never")
def norm_before_residual(case: Case, head: Head) -> Findings:
    """An EAGLE-3 speculators head whose config.json lacks norm_before_residual.

    A head trained with false drafts worse (acceptance length 2.02 instead of 3.07 on the tiny
    pair), without a warning.
    """
    if head.config.speculators == "eagle3" and "norm_before_residual" not in head.document:
        message = "norm_before_residual is not set; vLLM assumes true"
        fix = "if acceptance is below the published value, set it to false, as older heads need"
        yield note("drafter", message, fix)


@rule("layer-types", about="head", vllm_notices="at start")
def layer_types(case: Case, head: Head) -> Findings:
    """A head whose layer_types do not fit its layers, or need a sliding_window that is missing."""
    if pair_problem(case, head, "layer-types") is not None:
        yield error("drafter", f"config.json: {head.config.window_problem}", COPY_CONFIG)


@rule("head-window", about="head", vllm_notices="never")
def head_window(case: Case, head: Head) -> Findings:
    """A head whose layers attend to a sliding window."""
    window = max((size for size in head.config.windows if size), default=None)
    if window is not None and case.max_model_len > window:
        message = (
            f"the head sees only the last {window:,} tokens, and requests may have "
            f"{case.max_model_len:,}: acceptance falls in longer ones"
        )
        fix = f"use a head with full attention, or lower --max-model-len to {window}"
        yield warning("drafter", message, fix)


@rule("auxiliary-states-off", about="head", vllm_notices="at start")
def auxiliary_states_off(case: Case, head: Head) -> Findings:
    """A P-EAGLE head that turns auxiliary hidden states off, without which vLLM cannot start it."""
    if head.config.parallel_drafting and pair_problem(case, head, "auxiliary-states-off"):
        message = "the head drafts in parallel but sets use_aux_hidden_state to false"
        nested = "transformer_layer_config." if head.config.speculators_format else ""
        key = f"{nested}eagle_config.use_aux_hidden_state"
        yield error("drafter", message, f"set {key} to true if the head was trained with it")


def layers_key(head: Head, count: int) -> str:
    """The key of the head's config.json that lists ``count`` auxiliary layers, such that vLLM also
    builds ``fc`` for as many (0.28.0, llama_eagle3.py, qwen3_eagle3.py, speculators/algos.py)."""
    if not head.config.speculators_format:
        return f"eagle_config.{AUX_LAYERS}"
    if head.config.model_type == "qwen3" or count == DEFAULT_AUXILIARY:
        return AUX_LAYERS
    return f"transformer_layer_config.eagle_config.{AUX_LAYERS}"


@rule("aux-layer-count", about="head", vllm_notices="on a request")
def aux_layer_count(case: Case, head: Head) -> Findings:
    """A head that reads a different number of target layers from what its ``fc`` is built for.

    vLLM takes the layers from one key of config.json and the width of ``fc`` from another: in a
    head with Llama layers from num_aux_hidden_states or the list in eagle_config, else 3; in
    one with Qwen3 layers from the list that it reads. It starts, and crashes on a request.
    """
    if pair_problem(case, head, "aux-layer-count") is None:
        return
    depth, built_for = case.architecture.layers, head.config.built_for
    layers = head.layers_read(depth)
    message = f"vLLM reads {len(layers)} layers of the target and builds fc for {built_for}"
    fc, width = head.shape("fc.weight"), head.config.target_hidden_size
    states = fc[-1] // width if fc and width else len(layers)
    key = layers_key(head, states)
    fix = f"in config.json, list in {key} alone the {states} layers that fc was trained on"
    yield error("drafter", message, fix)


@rule("aux-layers-collide", about="head", vllm_notices="on a request")
def aux_layers_collide(case: Case, head: Head) -> Findings:
    """Auxiliary layers that are not distinct, including those that vLLM uses by default.

    For a head that lists none, vLLM reads layers 2, L/2 and L-3, of which two are equal in a
    shallow target: ``fc`` gets fewer hidden states than it expects.
    """
    if (problem := pair_problem(case, head, "aux-layers-collide")) is not None:
        source = "listed" if head.config.auxiliary_layers else "the default"
        message = (
            f"the target's layers {problem['layers']} ({source}) are not distinct: "
            f"{case.target.id} has {problem['num_hidden_layers']} layers"
        )
        fix = f"list the trained layers in {layers_key(head, head.config.built_for)}"
        yield error("drafter", message, fix)


@rule("aux-layers-outside", about="head", vllm_notices="on a request")
def aux_layers_outside(case: Case, head: Head) -> Findings:
    """Auxiliary layers that the target does not have, including those that vLLM uses by default.

    Layer i is the hidden state after i layers, so 0 to L exist. For any other layer vLLM passes
    one hidden state too few.
    """
    if (problem := pair_problem(case, head, "aux-layers-outside")) is not None:
        depth = problem["num_hidden_layers"]
        message = f"the head reads layers {problem['layers']}; {case.target.id} has {depth} layers"
        yield error("drafter", message, OTHER_HEAD)


@rule("fc-width", about="head", vllm_notices="at start")
def fc_width(case: Case, head: Head) -> Findings:
    """An ``fc`` whose input width is not auxiliary layers x the target's width."""
    config, fc = head.config, head.shape("fc.weight")
    if fc is None or config.quantized or not config.uses_auxiliary:
        return
    if config.hidden_size is None or config.target_hidden_size is None:
        return
    states, width = config.built_for, case.architecture.hidden_size
    expected = config.hidden_size, states * config.target_hidden_size
    if fc == expected or stored_width(head) is not None or any(aux_layer_count.check(case)):
        return
    if fc == (config.hidden_size, states * width):
        message = (
            f"config.json sets target_hidden_size to {config.target_hidden_size}, but fc.weight "
            f"takes {states} hidden states of {width}, the width of {case.target.id}"
        )
        fix = f"set target_hidden_size to {width}, or copy the head again"
        yield error("drafter", message, fix)
    else:
        size = f"{states} hidden states of {config.target_hidden_size:,}"
        message = other_shape(head, "fc.weight", f"{list(expected)}: {size}")
        yield error("drafter", message, MIXED_FILES)


@rule("head-without-mask", about="head", vllm_notices="at start")
def head_without_mask(case: Case, head: Head) -> Findings:
    """A P-EAGLE head without mask_hidden, the tensor of its masked slots."""
    if pair_problem(case, head, "head-without-mask") is not None:
        message = f"the head drafts in parallel but its weights have no {MASK}"
        yield error("drafter", message, f"copy the head again, or export it with {MASK}")


@rule("mask-shape", about="head", vllm_notices="at start")
def mask_shape(case: Case, head: Head) -> Findings:
    """A mask_hidden whose shape is not [1, 1, auxiliary layers x the target's width].

    vLLM broadcasts a single value without a warning, and rejects another size. If fc has the
    same wrong width, the rule for fc reports it.
    """
    name, width, states = head.named(MASK), head.config.target_hidden_size, head.config.built_for
    if name is None or not case.is_parallel or not width:
        return
    shape, fc = head.tensors[name].shape, head.shape("fc.weight")
    size, expected = prod(shape), states * width
    if size != expected and (fc is None or fc[-1:] != (size,)):
        message = f"{name} has shape {list(shape)}; the head needs [1, 1, {expected}]"
        yield error("drafter", message, f"copy the head again, or export it with {MASK}")


@rule("embeddings-shape", about="head", vllm_notices="at start")
def embeddings_shape(case: Case, head: Head) -> Findings:
    """Embeddings of the head whose shape differs from config.json."""
    name, config = "embed_tokens.weight", head.config
    expected = (config.vocab_size or case.architecture.vocab_size, config.hidden_size)
    shape = head.shape(name)
    if shape is None or config.quantized or shape[-1:] == (stored_width(head),):
        return
    if shape != expected:
        fix = "copy the head again, or leave embed_tokens out to share the target's"
        yield error("drafter", other_shape(head, name, list(expected)), fix)


@rule("lm-head-missing", about="head", vllm_notices="never")
def lm_head_missing(case: Case, head: Head) -> Findings:
    """A head without lm_head that cannot use the target's."""
    config, vocabulary = head.config, case.architecture.vocab_size
    drafted = config.draft_vocab_size or config.vocab_size
    if not head.tensors or head.named("lm_head") or drafted is None:
        return
    if config.vocab_size in (None, vocabulary) and drafted < vocabulary:
        message = f"the head drafts {drafted:,} of {vocabulary:,} tokens but has no lm_head"
        yield error("drafter", message, "copy the head again, or export it with lm_head")


def layers_in(head: Head) -> set[int]:
    """The numbers of the layers that have a tensor."""
    return {layer for layer in map(layer_of, head.tensors) if layer is not None}


@rule("layers-mismatch", about="head", vllm_notices="at start")
def layers_mismatch(case: Case, head: Head) -> Findings:
    """Weights whose layers differ from num_hidden_layers of config.json."""
    layers, expected = layers_in(head), head.config.layers
    if head.tensors and required(head.config) is not None and layers != set(range(expected or 0)):
        message = f"the weights have layers {sorted(layers)}; num_hidden_layers is {expected}"
        yield error("drafter", message, MIXED_FILES)


def is_merged(name: str) -> bool:
    """Whether vLLM has the tensor as a merged one."""
    return ".qkv_proj" in name or ".gate_up_proj" in name


@rule("tensors-missing", about="head", vllm_notices="never")
def tensors_missing(case: Case, head: Head) -> Findings:
    """A head whose weights lack tensors.

    vLLM does not require all of a draft head's tensors. Missing ones stay uninitialized: the
    endpoint becomes healthy, and nearly no draft is accepted. Another rule reports whole
    layers.
    """
    shapes, layers = required(head.config), layers_in(head)
    names = {plain_name(name) for name in head.tensors}
    if shapes is None or not names or any(map(is_merged, names)):
        return
    missing = [name for name in shapes if name not in names and layer_of(name) in {None, *layers}]
    if missing:
        fix = COPY_AGAIN
        if all(name.endswith("o_proj.bias") for name in missing):
            fix = "if the head was trained without it, add it as zeros: with attention_bias "
            fix += "vLLM's Llama layers have it"
        yield error("drafter", f"the weights lack {first_names(missing, 3)}", fix)


@rule("tensors-unknown", about="head", vllm_notices="at start")
def tensors_unknown(case: Case, head: Head) -> Findings:
    """A head whose weights have tensors that its class does not have.

    vLLM rejects them, except a bias, which it ignores without a line in its log: the head then
    computes something else than it was trained for. A Llama head has biases only with
    attention_bias or mlp_bias, a Qwen3 head never on o_proj or in the feed-forward block.
    """
    shapes = required(head.config)
    if shapes is None:
        return
    layers = range(head.config.layers or 0)
    known = {f"layers.{layer}.hidden_norm.weight" for layer in layers} | set(shapes)
    known |= {f"layers.{layer}.self_attn.rotary_emb.inv_freq" for layer in layers}
    others = [
        name
        for name in head.tensors
        if plain_name(name) not in known
        and not has_own_rule(name)
        and (layer_of(name) or 0) < len(layers)
        and not is_merged(name)
        and not name.startswith("input_norm.")
    ]
    dropped = [name for name in others if name.endswith(".bias")]
    if unknown := [name for name in others if name not in dropped]:
        message = f"the weights have {first_names(unknown, 3)}, which the class does not have"
        yield error("drafter", message, MIXED_FILES)
    if dropped:
        fix = "set attention_bias or mlp_bias to true if the class has them, or measure acceptance"
        yield warning("drafter", f"vLLM ignores {first_names(dropped, 3)}", fix)


@rule("tensor-shape", about="head", vllm_notices="at start")
def tensor_shape(case: Case, head: Head) -> Findings:
    """Layer tensors of the head whose shapes differ from config.json."""
    shapes, width = required(head.config), stored_width(head)
    if shapes is None:
        return
    if width is not None:
        size = head.config.hidden_size
        message = f"config.json sets hidden_size to {size}, but the weights have width {width}"
        yield error("drafter", message, f"set hidden_size to {width}, or {MIXED_FILES}")
        return
    for name in head.tensors:
        shape = shapes.get(plain_name(name))
        if shape is not None and not has_own_rule(plain_name(name)) and head.shape(name) != shape:
            yield error("drafter", other_shape(head, name, list(shape)), MIXED_FILES)
            return


_FLOATS = frozenset({"BF16", "F16", "F32", "F64"})
_INTEGERS = frozenset({"I64", "I32", "I16"})
_SCALES = ("scale", "qweight", "qzeros", "absmax", "packed")
"""Parts of the names of tensors that belong to quantized weights."""


@rule("tensor-dtype", about="head", vllm_notices="never")
def tensor_dtype(case: Case, head: Head) -> Findings:
    """Quantized weights without a quantization_config, or a quantization_config without scales.

    vLLM casts 8-bit values, and a floating-point d2t, to its own dtype as they are, and leaves
    scales that no file has uninitialized: it starts, and nearly no draft is accepted.
    """
    if head.config.quantized:
        if head.tensors and not any(map(head.named, _SCALES)):
            message = "config.json has a quantization_config, but the weights have no scales"
            fix = "remove quantization_config, or copy the quantized weights"
            yield error("drafter", message, fix)
        return
    for name, tensor in head.tensors.items():
        usual = _INTEGERS if "d2t" in name else _FLOATS
        if "t2d" not in name and tensor.dtype not in usual:
            message = f"{name} is {tensor.dtype}, but config.json has no quantization_config"
            yield error("drafter", message, "export the head in bfloat16")
            return
