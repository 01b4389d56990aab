"""The layout of a head: its config.json and tensors as vLLM reads them.

Tensors of a Llama or Qwen3 head: vLLM 0.28.0, model_executor/models/llama_eagle3.py and
qwen3_eagle3.py; names with ``midlayer`` written as ``layers.0``, as vLLM renames it. KV cache
groups: v1/core/kv_cache_utils.py (get_kv_cache_groups, _get_kv_cache_groups_uniform_page_size) and
v1/spec_decode/llm_base_proposer.py (validate_same_kv_cache_group).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from peagle.case import Case
from peagle.catalog.schema import AttentionGroup
from peagle.checkpoints.heads import Head, read_attention
from peagle.checks.registry import Check, Findings, Notices, error, note, rule, warning
from peagle.vllm.defaults import PADDING_RATIO
from peagle_serve.checkpoint import first_names
from peagle_serve.heads import (
    AUX_LAYERS,
    MIXED_FILES,
    HeadConfig,
    Problem,
    is_head,
    parse_layer,
    problems,
    read_classes,
    vllm_class,
)

Shapes = dict[str, tuple[int, ...]]

_OWN_RULES = ("fc.weight", "lm_head.weight", "embed_tokens.weight")
_OWN_RULE_PARTS = ("mask_hidden", "d2t", "t2d")
"""Tensors whose shape a separate rule checks, by name and by a part of it."""


def plain_name(name: str) -> str:
    """The name as vLLM sees it after its own renaming."""
    return name.replace("midlayer.", "layers.0.")


def has_own_rule(name: str) -> bool:
    """Whether a separate rule checks this tensor's shape."""
    return name in _OWN_RULES or any(part in name for part in _OWN_RULE_PARTS)


def required(head: HeadConfig) -> Shapes | None:
    """The tensors a head must have, except those it may share with the target.

    ``None`` for a head whose layout is unknown: of a different class, quantized, or with a
    config that leaves out numbers.
    """
    groups = read_attention(head)
    hidden, inner, queries = head.hidden_size, head.intermediate_size, head.query_heads
    if head.quantized or head.model_type not in ("llama", "qwen3") or not groups:
        return None
    if hidden is None or inner is None or queries is None:
        return None
    target_hidden, group = head.target_hidden_size or 0, groups[0]
    shapes: Shapes = {"norm.weight": (hidden,)}
    if head.uses_auxiliary:
        width = head.built_for * target_hidden
        shapes["fc.weight"] = (hidden, width)
        if head.norm_before_fc:
            shapes["input_norm.weight"] = (width,)
        if head.fc_norm:
            shapes |= {f"fc_norm.{n}.weight": (target_hidden,) for n in range(head.built_for)}
    q, kv = queries * group.head_dim, group.kv_heads * group.head_dim
    for layer in range(head.layers or 0):
        # The first layer takes embedding and hidden state side by side.
        wide = 2 * hidden if layer == 0 else hidden
        of_layer: Shapes = {
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (q, wide),
            "self_attn.k_proj.weight": (kv, wide),
            "self_attn.v_proj.weight": (kv, wide),
            "self_attn.o_proj.weight": (hidden, q),
            "mlp.gate_proj.weight": (inner, hidden),
            "mlp.up_proj.weight": (inner, hidden),
            "mlp.down_proj.weight": (hidden, inner),
        }
        if layer == 0:
            of_layer["hidden_norm.weight"] = (hidden,)
        if head.model_type == "qwen3":
            of_layer |= {f"self_attn.{n}_norm.weight": (group.head_dim,) for n in ("q", "k")}
        of_layer |= {
            name.replace(".weight", ".bias"): shape[:1]
            for name, shape in of_layer.items()
            if name.split(".")[-2] in head.biases
        }
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in of_layer.items()}
    return shapes


def draft_groups(target: Sequence[AttentionGroup], draft: Sequence[AttentionGroup]) -> int | None:
    """The groups of vLLM's KV cache with layers of the drafter; it starts only with one.

    Layers of one kind and size share a bucket. A group has as many layers as the smallest bucket,
    or as the largest when that has fewer than PADDING_RATIO times as many. vLLM deals out layer
    after layer, so consecutive ones are spread over as many groups as there are. ``None``: the
    pages of the buckets cannot be brought to one size by arithmetic alone.
    """
    groups = (*target, *draft)
    if len({(group.kind, group.window) for group in groups}) == 1:
        return 1

    def bucket(group: AttentionGroup) -> tuple[object, ...]:
        return group.kind, group.kv_heads, group.head_dim, group.window

    buckets: Counter[tuple[object, ...]] = Counter()
    for group in groups:
        buckets[bucket(group)] += group.layers
    pages = [group.kv_heads * group.head_dim for group in groups]
    if any(max(pages) % page for page in pages):
        return None
    fewest, most = min(buckets.values()), max(buckets.values())
    size = most if most < fewest * PADDING_RATIO else fewest
    return sum(min(group.layers, math.ceil(buckets[bucket(group)] / size)) for group in draft)


OTHER_HEAD = "use a head trained for this target"
COPY_AGAIN = "copy the head again, or export it again"
COPY_CONFIG = "copy the head again, including config.json"
_MASK = "copy the head again, or export it with mask_hidden"
_LISTED = f"list the trained layers in the key from which vLLM builds fc, such as {AUX_LAYERS}"
_KIND = "use a pair whose drafter is of the head's kind, P-EAGLE or EAGLE-3"
_PROBLEMS: dict[str, tuple[Notices, str, str]] = {
    # vLLM loads it without its mask and drafts token by token: slow, without an error.
    "p-eagle-as-eagle3": ("never", "A P-EAGLE head started as a plain EAGLE-3 head.", _KIND),
    "eagle3-as-p-eagle": ("at start", "A plain EAGLE-3 head started as P-EAGLE.", _KIND),
    "head-without-mask": ("at start", "A P-EAGLE head without mask_hidden.", _MASK),
    # The GPU reads other memory, or the engine crashes, with the first drafts.
    "placeholder-outside-vocabulary": (
        "on a request", "A placeholder token outside the vocabulary.", COPY_CONFIG
    ),
    "auxiliary-states-off": (
        "at start", "A P-EAGLE head that turns auxiliary hidden states off.",
        "set use_aux_hidden_state to true if the head was trained with it",
    ),
    # Layer i is the hidden state after i layers, so 0 to L exist. For a head that lists none, vLLM
    # reads layers 2, L/2 and L-3, of which two are equal in a shallow target.
    "aux-layers-outside": (
        "on a request", "Auxiliary layers, listed or default, that the target lacks.", OTHER_HEAD
    ),
    "aux-layers-collide": (
        "on a request", "Auxiliary layers, listed or default, that are not distinct.", _LISTED
    ),
    # vLLM takes the layers from one key of config.json and the width of fc from another: in a head
    # with Llama layers from num_aux_hidden_states or the list in eagle_config, else 3; in one with
    # Qwen3 layers from the list that it reads.
    "aux-layer-count": (
        "on a request", "A head that reads another number of layers than its `fc` takes.", _LISTED
    ),
    "hidden-size-mismatch": (
        "on a request", "A head for a hidden size that differs from the target's.",
        f"{OTHER_HEAD}, or correct config.json",
    ),
    "fc-width": ("at start", "An `fc` of another shape than config.json requires.", MIXED_FILES),
    # vLLM broadcasts a single value without a warning.
    "mask-shape": ("at start", "A mask_hidden of another size than `fc` takes.", _MASK),
    # Drafted ids stand for different tokens, or vLLM reads beyond a table.
    "vocabulary-mismatch": (
        "never", "A head whose vocabulary size differs from the target's.", OTHER_HEAD
    ),
    "draft-vocabulary": (
        "at start", "Drafted tokens that differ from lm_head or exceed the target's.", MIXED_FILES
    ),
    # The rows of the target's lm_head belong to other tokens than those that are drafted.
    "lm-head-missing": ("never", "A reduced vocabulary without lm_head.", COPY_AGAIN),
    # vLLM uses the drafted ids as the target's first tokens: nearly no draft is accepted.
    "d2t-missing": ("never", "A reduced vocabulary without d2t, which maps it.", COPY_AGAIN),
    "d2t-size": ("at start", "A d2t without one entry per drafted token.", COPY_AGAIN),
    # vLLM keeps an uninitialized table and reports it in one log line.
    "embeddings-not-shared": (
        "never", "A head without embeddings whose width differs from the target's.",
        "export the head with embed_tokens",
    ),
    "embeddings-shape": (
        "at start", "Embeddings of the head whose shape differs from config.json.", MIXED_FILES
    ),
    "layer-types": (
        "at start", "Layer types that do not fit the layers or lack a sliding_window.", COPY_CONFIG
    ),
    # Missing layers stay uninitialized: nearly no draft is accepted.
    "layers-mismatch": (
        "at start", "Weights whose layers differ from num_hidden_layers.", MIXED_FILES
    ),
}  # fmt: skip
"""Code of a problem that the container refuses too: when vLLM notices it, what it is, the fix."""


_CAUSES = ("hidden-size-mismatch", "vocabulary-mismatch")
"""Problems of the head of another model, from which others follow."""


def first_problem(case: Case, head: Head) -> Problem | None:
    """The first reason for which the container refuses the head, causes before what follows. Other
    rules report another target than that of the pair."""
    shape, listed, config = case.architecture, case.target.architecture, head.config
    sizes = (listed.hidden_size, listed.vocab_size)
    is_listed = (config.target_hidden_size, config.vocab_size) == sizes
    if is_listed and (shape.hidden_size, shape.vocab_size) != sizes:
        return None
    target = {"num_hidden_layers": shape.layers, "hidden_size": shape.hidden_size,
              "vocab_size": shape.vocab_size}  # fmt: skip
    refused = list(problems(head, target, case.is_parallel))
    causes = (problem for problem in refused if problem.code in _CAUSES)
    return next(causes, None) or next(iter(refused), None)


def _right_pair(case: Case) -> str:
    """The target's pair with a head of the other kind."""
    for drafter in case.target.drafters:
        if drafter.method == "eagle3" and drafter.parallel_drafting != case.is_parallel:
            return f"use the pair {case.target.short_name}+{drafter.name}, or a head of its kind"
    return _KIND


def _refused_as(code: str, guards: str, fix: str) -> Check:
    def check(case: Case, head: Head) -> Findings:
        problem = first_problem(case, head)
        if problem is not None and problem.code == code:
            present = [item for item in problem.values.items() if item[1] is not None]
            values = [f"{name} {value}" for name, value in present]
            what = guards[0].lower() + guards[1:].rstrip(".").replace("`", "")
            message = f"{what}: {', '.join(values)}" if values else what
            yield error("drafter", message, _right_pair(case) if fix == _KIND else fix)

    return check


for _code, (_notices, _guards, _fix) in _PROBLEMS.items():
    rule(_code, about="head", vllm_notices=_notices, guards=_guards, fix=_fix)(
        _refused_as(_code, _guards, _fix)
    )


@rule("head-not-a-drafter", about="head", vllm_notices="at start")
def head_not_a_drafter(case: Case) -> Findings:
    """A drafter location that is not a draft head."""
    checkpoint = case.drafter_checkpoint
    if checkpoint is not None and case.is_eagle and not is_head(checkpoint.config):
        what = ", ".join(read_classes(checkpoint.config)) or "no class"
        message = f"{checkpoint.location} is not a draft head: its config.json names {what}"
        yield error("drafter", message, OTHER_HEAD)


@rule("weights-unread", about="head", vllm_notices="at start")
def weights_unread(case: Case) -> Findings:
    """Weights that cannot be checked because they are not stored as safetensors.

    Without safetensors vLLM loads ``*.bin`` or ``*.pt`` (0.28.0, default_loader.py), which are
    pickles; the container of this toolkit refuses them, and so do copies to S3.
    """
    read = {"target": case.target_checkpoint, "drafter": case.drafter_checkpoint}
    for where, checkpoint in read.items():
        if checkpoint is None or checkpoint.tensors is not None:
            continue
        at, others = checkpoint.location, checkpoint.other_weights
        message = f"weights not checked: {at} has no *.safetensors"
        if not others:
            fix = "copy the weights there before you serve it"
            yield warning(where, f"{message}, config.json only", fix)
            continue
        message += f" but {', '.join(others[:3])}, which may run code when they are loaded"
        fix = "convert the weights to safetensors in their folder"
        yield error(where, message, fix)


@rule("config-incomplete", about="head", vllm_notices="never")
def config_incomplete(case: Case, head: Head) -> Findings:
    """A head whose config.json lacks sizes, or a part of the speculators format.

    vLLM uses the default of the class, such as 32 layers. Weights that no file fills stay
    uninitialized: it starts, and nearly no draft is accepted.
    """
    config, document = head.config, head.document
    required_keys: dict[str, object] = {
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.query_heads,
        "intermediate_size": config.intermediate_size,
        "vocab_size": config.vocab_size,
    }
    parts = ("speculators_model_type", "speculators_config", "transformer_layer_config")
    present = [part for part in parts if document.get(part) is not None]
    if present not in ([], ["transformer_layer_config"]):
        required_keys = {part: document.get(part) for part in parts} | required_keys
    missing = [key for key, value in required_keys.items() if value is None]
    if missing:
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


@rule("head-window", about="head", vllm_notices="never")
def head_window(case: Case, head: Head) -> Findings:
    """A head whose layers attend to a sliding window."""
    window = max((size for size in head.config.windows if size), default=None)
    if window is not None and case.max_model_len > window:
        message = f"acceptance falls in requests longer than the head's window of {window:,} tokens"
        fix = f"use a head with full attention, or lower --max-model-len to {window}"
        yield warning("drafter", message, fix)


def is_merged(name: str) -> bool:
    """Whether vLLM has the tensor as a merged one."""
    return ".qkv_proj" in name or ".gate_up_proj" in name


@rule("tensors-missing", about="head", vllm_notices="never")
def tensors_missing(case: Case, head: Head) -> Findings:
    """A head whose weights lack tensors.

    Missing ones stay uninitialized: the endpoint becomes healthy, and nearly no draft is accepted.
    Another rule reports whole layers.
    """
    shapes, layers = required(head.config), {None, *map(parse_layer, head.tensors)}
    names = {plain_name(name) for name in head.tensors}
    if shapes is None or not names or any(map(is_merged, names)):
        return
    missing = [name for name in shapes if name not in names and parse_layer(name) in layers]
    if missing:
        yield error("drafter", f"the weights lack {first_names(missing, 3)}", COPY_AGAIN)


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
    loaded = {f"layers.{layer}.hidden_norm.weight" for layer in layers} | set(shapes)
    loaded |= {f"layers.{layer}.self_attn.rotary_emb.inv_freq" for layer in layers}
    others = [
        name
        for name in head.tensors
        if plain_name(name) not in loaded
        and not has_own_rule(name)
        and (parse_layer(name) or 0) < len(layers)
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
    shapes = required(head.config) or {}
    for name in head.tensors:
        shape = shapes.get(plain_name(name))
        if shape is not None and not has_own_rule(plain_name(name)) and head.shape(name) != shape:
            stored = list(head.shape(name) or ())
            message = f"{name} has shape {stored}; config.json requires {list(shape)}"
            yield error("drafter", message, MIXED_FILES)
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
