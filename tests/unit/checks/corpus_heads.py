"""Broken heads: placeholders, auxiliary states and files that are not read."""

from pathlib import Path

from peagle.checks import Case
from tests.unit.checks.cases import read, tiny_case, with_options
from tests.unit.checks.corpus import Broken, speculators, tiny_pair
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
    return with_options(case, drafter_checkpoint=read(head))


def _layer_tensors(layer: int) -> list[str]:
    parts = ["input_layernorm", "post_attention_layernorm"]
    parts += [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    parts += [f"self_attn.{name}_proj" for name in ("q", "k", "v", "o")]
    return [f"model.layers.{layer}.{part}.weight" for part in parts]


PLACEHOLDERS = (
    tiny_pair("no mask", "head-without-mask", Damage(drop=("mask_hidden",))),
    tiny_pair("mask of a single number", "mask-shape", Damage(cut={"mask_hidden": (1, 1, 1)})),
    tiny_pair("no placeholder", "placeholder-missing", Damage(drop_keys=("ptd_token_id",))),
    tiny_pair("placeholder is the size of the vocabulary", "placeholder-outside-vocabulary",
        Damage(set_keys={"ptd_token_id": 1024})),
    tiny_pair("the first key that vLLM reads is outside", "placeholder-outside-vocabulary",
        Damage(set_keys={"dflash_config": {"mask_token_id": 4000}})),
    tiny_pair("EAGLE-3 head started as P-EAGLE", "eagle3-as-p-eagle", head="eagle3"),
    speculators("EAGLE-3 speculators head started as P-EAGLE", "eagle3-as-p-eagle", "eagle3"),
    tiny_pair("P-EAGLE head started as EAGLE-3", "p-eagle-as-eagle3", pair="tiny+eagle3"),
)  # fmt: skip
STATES = (
    tiny_pair("auxiliary states off", "auxiliary-states-off",
        Damage(set_keys={"eagle_config.use_aux_hidden_state": False})),
    tiny_pair("hidden states of another width", "hidden-size-mismatch",
        Damage(set_keys={"target_hidden_size": 512}, cut={"fc.weight": (256, 1536),
        "mask_hidden": (1, 1, 1536)})),
    tiny_pair("fc for two hidden states", "fc-width", Damage(cut={"fc.weight": (256, 512)})),
    tiny_pair("four layers read, three built for", "aux-layer-count",
        Damage(drop_keys=("eagle_config",), set_keys={"eagle_aux_hidden_state_layer_ids": [1, 2, 5,
        7]})),
    tiny_pair("two equal layers in the list", "aux-layers-collide", Damage(set_keys={EAGLE: [2, 2,
        7]})),
    tiny_pair("no layers listed, and vLLM's default collides in a target of six layers",
        "aux-layers-collide", Damage(drop_keys=("eagle_config",)),
        target=Damage(set_keys={"num_hidden_layers": 6},
        drop=tuple(_layer_tensors(6) + _layer_tensors(7))), entry={"layers": 6}),
    tiny_pair("a layer beyond the target", "aux-layers-outside", Damage(set_keys={EAGLE: [2, 5,
        9]})),
)  # fmt: skip
UNREAD = (
    Broken("no weights", lambda f: unread(f), "weights-unread", "warning"),
    Broken("weights in another format", lambda f: unread(f, "pytorch_model.bin"), "weights-unread"),
)  # fmt: skip
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
    tiny_pair("a bias that config.json does not mention", "tensors-unknown: warning",
        biases("q_proj", "k_proj", "v_proj", "o_proj")),
    tiny_pair("a window of 8 tokens", "head-window: warning", layer_types(*[SLIDING] * 4)),
    tiny_pair("full and sliding layers", "kv-group-rule", layer_types(FULL, *[SLIDING] * 3,
        window=4096)),
    tiny_pair("fewer kinds of attention than layers", "layer-types", layer_types(SLIDING)),
    tiny_pair("the target's EOS as mask token", "mask-token-used: warning",
        Damage(set_keys={"ptd_token_id": 1})),
)  # fmt: skip
HEADS = (*UNREAD, *PLACEHOLDERS, *STATES, *LAYERS, *VOCABULARIES, *TENSORS, *FORMATS)
