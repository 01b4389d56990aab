"""What the config.json of a head says, as vLLM reads it."""

from typing import Any

import pytest

from peagle_serve.checkpoint import MOST_LAYERS, Tensor
from peagle_serve.heads import AUX_LAYERS, Head, default_layers, is_head, parse_layer, read_head

FULL, SLIDING = "full_attention", "sliding_attention"
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
}
QWEN = LLAMA | {"architectures": ["Eagle3Qwen3ForCausalLM"]}
NESTED = {"speculators_model_type": "eagle3", "transformer_layer_config": LLAMA}


@pytest.mark.parametrize(("config", "windows", "has_problem"), [
    (LLAMA, (None, None), False),
    (LLAMA | {"sliding_window": 9}, (None, None), False),
    (LLAMA | {"layer_types": [SLIDING, FULL], "sliding_window": 9}, (9, None), False),
    (LLAMA | {"layer_types": [FULL, FULL], "sliding_window": 9}, (None, None), False),
    (LLAMA | {"layer_types": [SLIDING, FULL]}, (None, None), True),
    (LLAMA | {"layer_types": [SLIDING, FULL], "sliding_window": None}, (None, None), False),
    (LLAMA | {"layer_types": [SLIDING, FULL], "sliding_window": 0}, (None, None), False),
    (LLAMA | {"layer_types": [SLIDING, FULL], "sliding_window": 1}, (1, None), False),
    (LLAMA | {"layer_types": [SLIDING], "sliding_window": 9}, (None, None), True),
    (LLAMA | {"layer_types": "all"}, (None, None), False),
    (QWEN | {"layer_types": [SLIDING, FULL], "sliding_window": 9}, (None, None), False),
    (QWEN | {"layer_types": [SLIDING, FULL], "sliding_window": 9, "use_sliding_window": True},
     (9, None), False),
    (QWEN | {"layer_types": [SLIDING, FULL], "use_sliding_window": True}, (None, None), False),
    (NESTED | {"transformer_layer_config": LLAMA | {
        "model_type": "qwen3", "layer_types": [SLIDING, FULL], "sliding_window": 9}},
     (9, None), False),
])  # fmt: skip
def test_the_windows_of_its_layers(
    config: dict[str, Any], windows: tuple[int | None, ...], has_problem: bool
) -> None:
    head = read_head(config)
    assert (head.windows, bool(head.window_problem)) == (windows, has_problem)


@pytest.mark.parametrize(("more", "biases"), [
    ({}, ()),
    ({"attention_bias": True}, ("q_proj", "k_proj", "v_proj", "o_proj")),
    ({"bias": True}, ("o_proj",)),
    ({"mlp_bias": True}, ("gate_proj", "up_proj", "down_proj")),
])  # fmt: skip
def test_its_biases(more: dict[str, Any], biases: tuple[str, ...]) -> None:
    assert read_head(LLAMA | more).biases == biases
    expected = biases[:3] if "attention_bias" in more else ()
    assert read_head(QWEN | more).biases == expected, "Qwen3 has them in attention's inputs only"


@pytest.mark.parametrize(("config", "layers", "built_for"), [
    (LLAMA, None, 3),
    (LLAMA | {AUX_LAYERS: [1, 2]}, (1, 2), 3),
    (LLAMA | {AUX_LAYERS: []}, None, 3),
    (LLAMA | {"eagle_config": {AUX_LAYERS: [1, 2]}}, (1, 2), 2),
    (LLAMA | {AUX_LAYERS: [4], "eagle_config": {AUX_LAYERS: [1, 2]}}, (4,), 2),
    (LLAMA | {"num_aux_hidden_states": 5, "eagle_config": {AUX_LAYERS: [1]}}, (1,), 5),
    (LLAMA | {"num_aux_layers": 4}, None, 3),
    (QWEN | {"num_aux_layers": 4, "num_aux_hidden_states": 5}, None, 4),
    (QWEN | {AUX_LAYERS: [1, 2]}, (1, 2), 2),
    (NESTED | {AUX_LAYERS: [7]}, (7,), 3),
])  # fmt: skip
def test_the_layers_that_it_reads(
    config: dict[str, Any], layers: tuple[int, ...] | None, built_for: int
) -> None:
    head = read_head(config)
    assert (head.auxiliary_layers, head.built_for, head.invalid) == (layers, built_for, "")


@pytest.mark.parametrize(
    ("layers", "is_valid"),
    [
        ([0] * MOST_LAYERS, True), ([0] * (MOST_LAYERS + 1), False), (["1"], False), (7, False),
        ([True], False), (None, True),
    ],
)  # fmt: skip
def test_the_list_of_layers_has_bounds(layers: Any, is_valid: bool) -> None:
    assert (read_head(LLAMA | {AUX_LAYERS: layers}).invalid == "") is is_valid


@pytest.mark.parametrize(("more", "field", "value"), [
    ({}, "target_hidden_size", 64),
    ({"target_hidden_size": 32}, "target_hidden_size", 32),
    ({"target_hidden_size": 0}, "target_hidden_size", 64),
    ({}, "head_dim", 16),
    ({"head_dim": 8}, "head_dim", 8),
    ({"hidden_size": 2}, "head_dim", None),
    ({}, "kv_heads", 4),
    ({"num_key_value_heads": 2}, "kv_heads", 2),
    ({"hidden_size": "64"}, "hidden_size", None),
    ({"hidden_size": True}, "hidden_size", None),
    ({"num_hidden_layers": MOST_LAYERS}, "layers", MOST_LAYERS),
    ({"num_hidden_layers": MOST_LAYERS + 1}, "layers", None),
    ({"ptd_token_id": 0}, "parallel_drafting", True),
    ({"ptd_token_id": None}, "parallel_drafting", False),
    ({"eagle_config": {"use_aux_hidden_state": False}}, "uses_auxiliary", False),
    ({"eagle_config": {"use_aux_hidden_state": None}}, "uses_auxiliary", True),
    ({"norm_before_fc": True}, "norm_before_fc", True),
    ({"norm_before_fc": True, "eagle_config": {"norm_before_fc": False}}, "norm_before_fc", False),
    ({"fc_norm": True}, "fc_norm", True),
    ({"quantization_config": {}}, "quantized", True),
    ({"quantization_config": None}, "quantized", False),
])  # fmt: skip
def test_its_values(more: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(read_head(LLAMA | more), field) == value


@pytest.mark.parametrize(("config", "speculators", "parallel"), [
    (LLAMA, None, False),
    (NESTED, "eagle3", False),
    (NESTED | {"speculators_model_type": "peagle"}, "peagle", True),
    (NESTED | {"mask_token_id": 1}, "eagle3", True),
])  # fmt: skip
def test_its_layout(config: dict[str, Any], speculators: str | None, parallel: bool) -> None:
    head = read_head(config)
    assert (head.speculators, head.parallel_drafting) == (speculators, parallel)
    assert head.speculators_format is (speculators is not None)
    assert (head.layers, is_head(config)) == (2, True)


@pytest.mark.parametrize(("name", "number"), [
    ("model.layers.12.mlp", 12),
    ("midlayer.norm", 0),
    ("layers.x.y", None),
    ("mylayers.1.a", None),
])  # fmt: skip
def test_a_tensor_belongs_to_a_layer(name: str, number: int | None) -> None:
    assert parse_layer(name) == number


@pytest.mark.parametrize(("document", "tensors", "parallel", "may_be_head"), [
    ({}, (), False, True),
    ({}, ("model.norm.weight",), False, False),
    ({}, ("fc.weight",), False, True),
    ({}, ("mask_hidden",), True, True),
    ({"draft_vocab_size": 1}, ("norm",), False, True),
    ({"architectures": ["MyEagle"]}, ("norm",), False, True),
    ({"ptd_token_id": 0}, ("norm",), False, True),
    ({"ptd_token_id": 0}, (), True, True),
    ({"speculators_model_type": "peagle"}, (), True, True),
    ({"speculators_model_type": "eagle3"}, (), False, True),
])  # fmt: skip
def test_what_shows_that_it_is_a_head(
    document: dict[str, Any], tensors: tuple[str, ...], parallel: bool, may_be_head: bool
) -> None:
    head = Head(document, {name: Tensor("BF16", (2,), 4) for name in tensors})
    assert (head.is_parallel(), head.may_be_head()) == (parallel, may_be_head)


def test_the_layers_by_default() -> None:
    assert default_layers(24) == (2, 12, 21)
    assert not is_head({"architectures": ["LlamaForCausalLM"], "hidden_size": 8})
