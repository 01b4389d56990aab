"""Broken heads: placeholders, auxiliary states and files that are not read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from peagle.checks import Case
from tests.unit.checks.cases import geometry_case, read, speculators_case, tiny_case
from tests.unit.checks.corpus import Broken
from tests.unit.checks.corpus_head_tensors import FORMATS, TENSORS, VOCABULARIES
from tests.unit.checks.damage import Damage, RawTensor, config_only

EAGLE = "eagle_config.eagle_aux_hidden_state_layer_ids"


def unread(folder: Path, *others: str) -> Case:
    """The tiny pair with a head that has only config.json and these empty files."""
    case = tiny_case(folder)
    assert case.drafter_checkpoint is not None
    head = config_only(folder / "bare", dict(case.drafter_checkpoint.config))
    for name in others:
        (head / name).touch()
    return replace(case, drafter_checkpoint=read(head))


PLACEHOLDERS = (
    Broken("no mask", lambda f: tiny_case(f, Damage(drop=("mask_hidden",))), "head-without-mask"),
    Broken(
        "mask of two hidden states",
        lambda f: tiny_case(f, Damage(cut={"mask_hidden": (1, 1, 512)})),
        "mask-shape",
    ),
    Broken(
        "mask of a single number",
        lambda f: tiny_case(f, Damage(cut={"mask_hidden": (1, 1, 1)})),
        "mask-shape",
    ),
    Broken(
        "no placeholder",
        lambda f: tiny_case(f, Damage(drop_keys=("ptd_token_id",))),
        "placeholder-missing",
    ),
    Broken(
        "a placeholder under a key that this version does not read",
        lambda f: tiny_case(
            f, Damage(drop_keys=("ptd_token_id",), set_keys={"mask_token_id": 2}), vllm="0.26.0"
        ),
        "placeholder-missing",
    ),
    Broken(
        "placeholder is the size of the vocabulary",
        lambda f: tiny_case(f, Damage(set_keys={"ptd_token_id": 1024})),
        "placeholder-outside-vocabulary",
    ),
    Broken(
        "placeholder below 0",
        lambda f: tiny_case(f, Damage(set_keys={"ptd_token_id": -1})),
        "placeholder-outside-vocabulary",
    ),
    Broken(
        "the first key that vLLM reads is outside",
        lambda f: tiny_case(f, Damage(set_keys={"dflash_config": {"mask_token_id": 4000}})),
        "placeholder-outside-vocabulary",
    ),
    Broken(
        "placeholder outside, real geometry",
        lambda f: geometry_case(f, "gpt-oss-20b", changes={"ptd_token_id": 201088}),
        "placeholder-outside-vocabulary",
    ),
    Broken(
        "EAGLE-3 head started as P-EAGLE",
        lambda f: tiny_case(f, head="eagle3"),
        "eagle3-as-p-eagle",
    ),
    Broken(
        "EAGLE-3 head started as P-EAGLE, real geometry",
        lambda f: geometry_case(f, "gpt-oss-120b", "eagle3", pair="gpt-oss-120b+p-eagle"),
        "eagle3-as-p-eagle",
    ),
    Broken(
        "EAGLE-3 speculators head started as P-EAGLE",
        lambda f: speculators_case(f, "eagle3"),
        "eagle3-as-p-eagle",
    ),
    Broken(
        "P-EAGLE head started as EAGLE-3",
        lambda f: tiny_case(f, pair="tiny+eagle3"),
        "p-eagle-as-eagle3",
    ),
    Broken(
        "P-EAGLE head started as EAGLE-3, real geometry",
        lambda f: geometry_case(f, "qwen3-coder-30b", pair="qwen3-coder-30b+eagle3"),
        "p-eagle-as-eagle3",
    ),
)


STATES = (
    Broken(
        "auxiliary states off",
        lambda f: tiny_case(f, Damage(set_keys={"eagle_config.use_aux_hidden_state": False})),
        "auxiliary-states-off",
    ),
    Broken(
        "hidden states of another width",
        lambda f: tiny_case(
            f,
            Damage(
                set_keys={"target_hidden_size": 512},
                cut={"fc.weight": (256, 1536), "mask_hidden": (1, 1, 1536)},
            ),
        ),
        "hidden-size-mismatch",
    ),
    Broken(
        "the head of the smaller target, real geometry",
        lambda f: geometry_case(f, "qwen3-coder-30b", changes={"target_hidden_size": 4096}),
        "hidden-size-mismatch",
    ),
    Broken(
        "fc for two hidden states",
        lambda f: tiny_case(f, Damage(cut={"fc.weight": (256, 512)})),
        "fc-width",
    ),
    Broken(
        "fc and mask for two hidden states",
        lambda f: tiny_case(f, Damage(cut={"fc.weight": (256, 512), "mask_hidden": (1, 1, 512)})),
        "fc-width",
    ),
    Broken(
        "fc of the wrong height",
        lambda f: tiny_case(f, Damage(cut={"fc.weight": (128, 768)})),
        "fc-width",
    ),
    Broken(
        "four layers read, three built for",
        lambda f: tiny_case(
            f,
            Damage(
                drop_keys=("eagle_config",),
                set_keys={"eagle_aux_hidden_state_layer_ids": [1, 2, 5, 7]},
            ),
        ),
        "aux-layer-count",
    ),
    Broken(
        "two equal layers in the list",
        lambda f: tiny_case(f, Damage(set_keys={EAGLE: [2, 2, 7]})),
        "aux-layers-collide",
    ),
    Broken(
        "no layers listed, and vLLM's default collides in a target of six layers",
        lambda f: tiny_case(
            f,
            Damage(drop_keys=("eagle_config",)),
            target=Damage(
                set_keys={"num_hidden_layers": 6}, drop=tuple(_layer_tensors(6) + _layer_tensors(7))
            ),
            entry={"layers": 6},
        ),
        "aux-layers-collide",
    ),
    Broken(
        "a layer beyond the target",
        lambda f: tiny_case(f, Damage(set_keys={EAGLE: [2, 5, 9]})),
        "aux-layers-outside",
    ),
    Broken(
        "a layer below 0",
        lambda f: tiny_case(f, Damage(set_keys={EAGLE: [-1, 2, 5]})),
        "aux-layers-outside",
    ),
    Broken(
        "the layers of 120b in 20b, real geometry",
        lambda f: geometry_case(
            f,
            "gpt-oss-20b",
            changes={"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 18, 33]}},
        ),
        "aux-layers-outside",
    ),
)


def _layer_tensors(layer: int) -> list[str]:
    parts = ["input_layernorm", "post_attention_layernorm"]
    parts += [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    parts += [f"self_attn.{name}_proj" for name in ("q", "k", "v", "o")]
    return [f"model.layers.{layer}.{part}.weight" for part in parts]


UNREAD = (
    Broken("no weights", lambda f: unread(f), "weights-unread", "warning"),
    Broken("weights in another format", lambda f: unread(f, "pytorch_model.bin"), "weights-unread"),
)


SLIDING, FULL = "sliding_attention", "full_attention"
ONES = b"\x80\x3f"
"""1 in bfloat16."""


def layer_types(*kinds: str, window: int | None = 8) -> Damage:
    """The tiny head with these kinds of attention."""
    size = {} if window is None else {"sliding_window": window}
    return Damage(set_keys={"layer_types": list(kinds), **size})


def biases(*projections: str) -> Damage:
    """The tiny head with biases of 1 for these projections of its first layer."""
    sizes = {"q_proj": 256, "k_proj": 128, "v_proj": 128, "o_proj": 256}
    return Damage(
        add={
            f"midlayer.self_attn.{name}.bias": RawTensor("BF16", (sizes[name],), ONES * sizes[name])
            for name in projections
        }
    )


LAYERS = (
    Broken(
        "a bias that config.json does not mention",
        lambda f: tiny_case(f, biases("q_proj", "k_proj", "v_proj", "o_proj")),
        "tensors-unknown",
        "warning",
    ),
    Broken(
        "a window of 8 tokens",
        lambda f: tiny_case(f, layer_types(*[SLIDING] * 4)),
        "head-window",
        "warning",
    ),
    Broken(
        "one sliding layer beside the full layers of the target, real geometry",
        lambda f: geometry_case(
            f,
            "qwen3-coder-30b",
            "eagle3",
            changes={"layer_types": [SLIDING], "sliding_window": 2**30},
        ),
        "head-window",
        "warning",
    ),
    Broken(
        "full and sliding layers",
        lambda f: tiny_case(f, layer_types(FULL, *[SLIDING] * 3, window=4096)),
        "kv-group-rule",
    ),
    Broken(
        "fewer kinds of attention than layers",
        lambda f: tiny_case(f, layer_types(SLIDING)),
        "layer-types",
    ),
    Broken(
        "sliding layers without a window",
        lambda f: tiny_case(f, layer_types(*[SLIDING] * 4, window=None)),
        "layer-types",
    ),
    Broken(
        "the target's EOS as mask token",
        lambda f: tiny_case(f, Damage(set_keys={"ptd_token_id": 1})),
        "mask-token-used",
        "warning",
    ),
)


HEADS = (*UNREAD, *PLACEHOLDERS, *STATES, *LAYERS, *VOCABULARIES, *TENSORS, *FORMATS)
