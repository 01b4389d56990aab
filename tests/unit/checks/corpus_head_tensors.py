"""Broken heads: vocabularies, tensors and formats of the files."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.checks.cases import OWN_IMAGE, geometry_case, speculators_case, tiny_case
from tests.unit.checks.corpus import Broken
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
    Broken(
        "a larger vocabulary",
        lambda f: tiny_case(f, Damage(set_keys={"vocab_size": 2048, "draft_vocab_size": 2048})),
        "vocabulary-mismatch",
    ),
    Broken(
        "a smaller vocabulary",
        lambda f: tiny_case(f, Damage(set_keys={"vocab_size": 512, "draft_vocab_size": 512})),
        "vocabulary-mismatch",
    ),
    Broken(
        "another family's vocabulary, real geometry",
        lambda f: geometry_case(
            f, "gemma-4-31b", changes={"vocab_size": 151936, "draft_vocab_size": 151936}
        ),
        "vocabulary-mismatch",
    ),
    Broken(
        "more tokens drafted than the target has",
        lambda f: tiny_case(f, Damage(set_keys={"draft_vocab_size": 2048})),
        "draft-vocabulary",
    ),
    Broken(
        "lm_head with other rows",
        lambda f: tiny_case(
            f,
            replace(
                REDUCED,
                set_keys={"draft_vocab_size": 256},
                add={**REDUCED.add, "d2t": integers([0] * 256)},
            ),
        ),
        "draft-vocabulary",
    ),
    Broken("d2t of another size", lambda f: tiny_case(f, with_d2t(256)), "d2t-size"),
    Broken(
        "a reduced vocabulary without d2t",
        lambda f: tiny_case(f, without("d2t", "t2d")),
        "d2t-missing",
    ),
    Broken(
        "a reduced vocabulary without lm_head",
        lambda f: tiny_case(f, without("lm_head.weight")),
        "lm-head-missing",
    ),
    Broken(
        "embeddings of half the vocabulary",
        lambda f: tiny_case(f, Damage(add={"embed_tokens.weight": filled("BF16", (512, 256))})),
        "embeddings-shape",
    ),
    Broken(
        "a narrow head without embeddings",
        lambda f: tiny_case(f, NARROW, head="eagle3", pair="tiny+eagle3"),
        "embeddings-not-shared",
    ),
)


TENSORS = (
    Broken(
        "config.json with fewer layers than the weights",
        lambda f: tiny_case(f, Damage(set_keys={"num_hidden_layers": 3})),
        "layers-mismatch",
    ),
    Broken(
        "config.json with more layers than the weights",
        lambda f: tiny_case(f, Damage(set_keys={"num_hidden_layers": 5})),
        "layers-mismatch",
    ),
    Broken(
        "biases in config.json only",
        lambda f: tiny_case(f, Damage(set_keys={"attention_bias": True})),
        "tensors-missing",
    ),
    Broken(
        "a quantization in config.json without scales",
        lambda f: tiny_case(f, Damage(set_keys={"quantization_config": {"quant_method": "fp8"}})),
        "tensor-dtype",
    ),
    Broken(
        "no final norm", lambda f: tiny_case(f, Damage(drop=("norm.weight",))), "tensors-missing"
    ),
    Broken(
        "one missing projection in one layer",
        lambda f: tiny_case(f, Damage(drop=("layers.2.mlp.up_proj.weight",))),
        "tensors-missing",
    ),
    Broken(
        "an unknown tensor",
        lambda f: tiny_case(f, Damage(add={"adapter.weight": filled("BF16", (4, 4))})),
        "tensors-unknown",
    ),
    Broken(
        "a first layer as wide as the others",
        lambda f: tiny_case(f, Damage(cut={"midlayer.self_attn.q_proj.weight": (256, 256)})),
        "tensor-shape",
    ),
    Broken(
        "a feed-forward block of another width",
        lambda f: tiny_case(f, Damage(set_keys={"intermediate_size": 512})),
        "tensor-shape",
    ),
    Broken(
        "FP8 without scales",
        lambda f: tiny_case(f, Damage(retype={"layers.1.mlp.up_proj.weight": "F8_E4M3"})),
        "tensor-dtype",
    ),
    Broken(
        "d2t of floats",
        lambda f: tiny_case(f, replace(REDUCED, add={**REDUCED.add, "d2t": filled("F32", (512,))})),
        "tensor-dtype",
    ),
)


FORMATS = (
    Broken("the target as head", lambda f: tiny_case(f, head="target"), "head-not-a-drafter"),
    Broken(
        "an empty config.json",
        lambda f: tiny_case(f, Damage(text="{}")),
        "head-not-a-drafter"
    ),
    Broken(
        "no num_hidden_layers",
        lambda f: tiny_case(f, Damage(drop_keys=("num_hidden_layers",))),
        "config-incomplete"
    ),
    Broken(
        "no norm_before_residual",
        lambda f: speculators_case(
            f, "eagle3", Damage(drop_keys=("norm_before_residual",)), pair="tiny+eagle3"
        ),
        "norm-before-residual",
        "note"
    ),
    Broken(
        "no layers in the speculators format",
        lambda f: speculators_case(f, "peagle", Damage(drop_keys=("transformer_layer_config",))),
        "speculators-layout"
    ),
    Broken(
        "a class of a training framework",
        lambda f: tiny_case(f, Damage(set_keys={"architectures": ["PEagleDraftModel"]})),
        "method-not-for-architecture"
    ),
    Broken(
        "another method's head",
        lambda f: geometry_case(
            f, "gpt-oss-20b", changes={"architectures": ["DFlashDraftModel"]}
        ),
        "method-not-for-architecture"
    ),
    Broken(
        "layers of a type without a speculators class",
        lambda f: speculators_case(
            f, "peagle", Damage(set_keys={"transformer_layer_config.model_type": "mistral"})
        ),
        "method-not-for-architecture"
    ),
    Broken(
        "another type of speculator",
        lambda f: speculators_case(
            f, "peagle", Damage(set_keys={"speculators_model_type": "eagle"})
        ),
        "method-not-for-architecture"
    ),
    Broken(
        "no speculators_config",
        lambda f: speculators_case(f, "peagle", Damage(drop_keys=("speculators_config",))),
        "speculators-layout"
    ),
    Broken(
        "speculators head without its mask token",
        lambda f: speculators_case(f, "peagle", Damage(drop_keys=("mask_token_id",))),
        "placeholder-missing"
    ),
    Broken(
        "trained for another target",
        lambda f: speculators_case(
            f,
            "peagle",
            Damage(set_keys={"speculators_config.verifier.name_or_path": "Qwen/Qwen3-8B"})
        ),
        "speculators-verifier"
    ),
    Broken(
        "trained for a variant of the target",
        lambda f: speculators_case(
            f,
            "peagle",
            Damage(set_keys={"speculators_config.verifier.name_or_path": "peagle/tiny-FP8"})
        ),
        "speculators-verifier",
        "warning"
    ),
    Broken(
        "P-EAGLE in the speculators format on an older vLLM",
        lambda f: speculators_case(f, "peagle", vllm="0.20.1"),
        "speculators-format"
    ),
    Broken(
        "a norm before fc on an older vLLM",
        lambda f: tiny_case(
            f,
            Damage(
                set_keys={"norm_before_fc": True},
                add={"input_norm.weight": filled("BF16", (768,))}
            ),
            vllm="0.17.1",
            image=OWN_IMAGE
        ),
        "norm-before-fc"
    ),
)  # fmt: skip
