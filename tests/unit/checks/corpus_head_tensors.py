"""Broken heads: vocabularies, tensors and formats of the files."""

from dataclasses import replace

from tests.unit.checks.corpus import speculators, tiny_pair
from tests.unit.checks.damage import Damage, booleans, filled, integers

REDUCED = Damage(
    set_keys={"draft_vocab_size": 512},
    add={
        "lm_head.weight": filled("BF16", (512, 256)),
        "d2t": integers([0] * 512),
        "t2d": booleans([True] * 512 + [False] * 512),
    },
)
"""A good head that drafts from half of the vocabulary."""
NARROW = Damage(
    set_keys={"hidden_size": 128, "target_hidden_size": 256, "num_attention_heads": 2},
    cut={
        "fc.weight": (128, 768),
        "norm.weight": (128,),
        "midlayer.hidden_norm.weight": (128,),
        "midlayer.input_layernorm.weight": (128,),
        "midlayer.post_attention_layernorm.weight": (128,),
        "midlayer.self_attn.q_proj.weight": (128, 256),
        "midlayer.self_attn.k_proj.weight": (128, 256),
        "midlayer.self_attn.v_proj.weight": (128, 256),
        "midlayer.self_attn.o_proj.weight": (128, 128),
        "midlayer.mlp.gate_proj.weight": (384, 128),
        "midlayer.mlp.up_proj.weight": (384, 128),
        "midlayer.mlp.down_proj.weight": (128, 384),
    },
    add={"lm_head.weight": filled("BF16", (1024, 128))},
)
"""An EAGLE-3 head of half the target's width, without embeddings of its own."""


def with_d2t(size: int) -> Damage:
    return replace(REDUCED, add={**REDUCED.add, "d2t": integers([0] * size)})


def without(*names: str) -> Damage:
    return replace(REDUCED, add={n: t for n, t in REDUCED.add.items() if n not in names})


VOCABULARIES = (
    tiny_pair("a larger vocabulary", "vocabulary-mismatch", Damage(set_keys={"vocab_size": 2048,
        "draft_vocab_size": 2048})),
    tiny_pair("more tokens drafted than the target has", "draft-vocabulary",
        Damage(set_keys={"draft_vocab_size": 2048})),
    tiny_pair("d2t of another size", "d2t-size", with_d2t(256)),
    tiny_pair("a reduced vocabulary without d2t", "d2t-missing", without("d2t", "t2d")),
    tiny_pair("a reduced vocabulary without lm_head", "lm-head-missing", without("lm_head.weight")),
    tiny_pair("embeddings of half the vocabulary", "embeddings-shape",
        Damage(add={"embed_tokens.weight": filled("BF16", (512, 256))})),
    tiny_pair("a narrow head without embeddings", "embeddings-not-shared", NARROW, head="eagle3",
        pair="tiny+eagle3"),
)  # fmt: skip
TENSORS = (
    tiny_pair("config.json with fewer layers than the weights", "layers-mismatch",
        Damage(set_keys={"num_hidden_layers": 3})),
    tiny_pair("a quantization in config.json without scales", "tensor-dtype",
        Damage(set_keys={"quantization_config": {"quant_method": "fp8"}})),
    tiny_pair("no final norm", "tensors-missing", Damage(drop=("norm.weight",))),
    tiny_pair("an unknown tensor", "tensors-unknown", Damage(add={"adapter.weight": filled("BF16",
        (4, 4))})),
    tiny_pair("a first layer as wide as the others", "tensor-shape",
        Damage(cut={"midlayer.self_attn.q_proj.weight": (256, 256)})),
    tiny_pair("FP8 without scales", "tensor-dtype",
        Damage(retype={"layers.1.mlp.up_proj.weight": "F8_E4M3"})),
)  # fmt: skip
FORMATS = (
    tiny_pair("the target as head", "head-not-a-drafter", head="target"),
    tiny_pair("no num_hidden_layers", "config-incomplete",
        Damage(drop_keys=("num_hidden_layers",))),
    speculators("no norm_before_residual", "norm-before-residual: note", "eagle3",
        Damage(drop_keys=("norm_before_residual",)), pair="tiny+eagle3"),
    tiny_pair("a class of a training framework", "method-not-for-architecture",
        Damage(set_keys={"architectures": ["PEagleDraftModel"]})),
    speculators("layers of a type without a speculators class", "method-not-for-architecture",
        "peagle", Damage(set_keys={"transformer_layer_config.model_type": "mistral"})),
    speculators("no speculators_config", "config-incomplete", "peagle",
        Damage(drop_keys=("speculators_config",))),
    speculators("speculators head without its mask token", "placeholder-missing", "peagle",
        Damage(drop_keys=("mask_token_id",))),
    speculators("trained for another target", "speculators-verifier", "peagle",
        Damage(set_keys={"speculators_config.verifier.name_or_path": "Qwen/Qwen3-8B"})),
    speculators("trained for a variant of the target", "speculators-verifier: warning", "peagle",
        Damage(set_keys={"speculators_config.verifier.name_or_path": "peagle/tiny-FP8"})),
)  # fmt: skip
