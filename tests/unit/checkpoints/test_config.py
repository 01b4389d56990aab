"""Invalid and valid config.json files."""

import json
from pathlib import Path
from typing import Any

import pytest

from peagle.catalog import load_catalog
from peagle.catalog.schema import AttentionGroup
from peagle.checkpoints import Tensor
from peagle.checkpoints.architecture import (
    class_name,
    read_architecture,
    read_dtype,
    read_quantization,
)
from peagle.checkpoints.files import parse_config
from peagle.errors import CheckpointError
from peagle.fit.building import served_tensors
from tests.support import raises_code
from tests.unit.checkpoints import public_targets as public

GEOMETRY = Path(__file__).parents[3] / "model_catalog" / "configs"


@pytest.mark.parametrize(("content", "text"), [
    ("", "config.json is not valid JSON"),
    ("[]", "config.json is not a JSON object"),
    ("[" * 100_000, "cannot be read"),
    ('{"a": ' + "9" * 5000 + "}", "cannot be read: Exceeds the limit"),
    ('{"architectures": ["\\ud800"]}', "has half of a surrogate pair"),
])  # fmt: skip
def test_an_invalid_value_is_reported_with_its_key(content: str, text: str) -> None:
    with raises_code("config-damaged", CheckpointError) as refused:
        parse_config(content.encode())
    assert refused.value.message.startswith("config.json")
    assert text in refused.value.message
    assert len(refused.value.message) < 200
    assert refused.value.fix


@pytest.mark.parametrize("config", [
    {},
    {"hidden_size": None, "text_config": None},
    {"sliding_window": 0, "num_local_experts": 0},
    {"mask_token_id": -1},
    {"rope_theta": 1e6, "time_step_limit": [0.0, float("inf")], "name": "ü"},
    {"vision_config": {"hidden_size": "not read"}},
])  # fmt: skip
def test_values_that_planning_does_not_read_are_accepted(config: dict[str, object]) -> None:
    assert parse_config(json.dumps(config, ensure_ascii=False).encode()) == config


# A config.json becomes an architecture, with the numbers that the catalogue has.
PAIRS = ("gpt-oss-20b", "gpt-oss-120b", "qwen3-coder-30b", "gemma-4-31b")
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 1024, "num_hidden_layers": 4,
    "num_attention_heads": 16, "intermediate_size": 4096, "vocab_size": 32000,
    "max_position_embeddings": 8192,
}  # fmt: skip


def config(name: str, part: str = "target") -> dict[str, Any]:
    document: dict[str, Any] = json.loads((GEOMETRY / name / part / "config.json").read_text())
    return document


@pytest.mark.parametrize("name", PAIRS)
def test_the_targets_are_as_the_catalogue_has_them(name: str) -> None:
    catalogued = next(t for t in load_catalog().targets.values() if t.short_name == name)
    assert read_architecture(config(name)) == catalogued.architecture
    assert read_quantization(config(name)) == catalogued.quantization


def test_a_plain_llama_has_as_many_key_value_heads_as_heads() -> None:
    shape = read_architecture(LLAMA)
    assert shape.attention == (AttentionGroup(kind="full", layers=4, kv_heads=16, head_dim=64),)
    assert not shape.tied_embeddings
    assert shape.experts is None


def test_a_speculators_head_is_nested() -> None:
    head = {"architectures": ["PEagleSpeculator"], "transformer_layer_config": LLAMA}
    assert read_architecture(head).hidden_size == 1024
    assert class_name(head) == "PEagleSpeculator"
    assert class_name({}) == "unknown"


@pytest.mark.parametrize(("more", "kinds"), [
    ({"sliding_window": 128, "model_type": "gpt_oss"}, [("sliding", 2), ("full", 2)]),
    ({"sliding_window": 4096}, [("sliding", 4)]),
    ({"sliding_window": 4096, "use_sliding_window": False}, [("full", 4)]),
    ({"sliding_window": None}, [("full", 4)]),
    ({"sliding_window": 9, "sliding_window_pattern": 4}, [("sliding", 3), ("full", 1)]),
    ({"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 1},
     [("full", 1), ("sliding", 3)]),
    ({"sliding_window": 9, "layer_types": ["full_attention"] * 3 + ["sliding_attention"]},
     [("full", 3), ("sliding", 1)]),
])  # fmt: skip
def test_sliding_windows_have_several_notations(
    more: dict[str, Any], kinds: list[tuple[str, int]]
) -> None:
    groups = read_architecture(LLAMA | more).attention
    assert [(group.kind, group.layers) for group in groups] == kinds


@pytest.mark.parametrize("renamed", [
    {  # ChatGLM
        "num_hidden_layers": "num_layers",
        "vocab_size": "padded_vocab_size",
        "intermediate_size": "ffn_hidden_size",
        "max_position_embeddings": "seq_length",
    },
    {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "intermediate_size": "n_inner"},
    {"max_position_embeddings": "model_max_length"},  # Kimi Linear
    {"num_attention_heads": "n_heads"},
])  # fmt: skip
def test_families_name_their_sizes_differently(renamed: dict[str, str]) -> None:
    other = {renamed.get(key, key): value for key, value in LLAMA.items()}
    assert read_architecture(other) == read_architecture(LLAMA)


def test_key_value_heads_and_their_width_have_other_names_too() -> None:
    for heads, width in (("multi_query_group_num", "kv_channels"),
                         ("num_attention_groups", "attention_head_dim")):  # fmt: skip
        cache = read_architecture(LLAMA | {heads: 2, width: 128}).attention[0]
        assert (cache.kv_heads, cache.head_dim) == (2, 128)


def test_layers_that_share_a_cache_have_none_of_their_own() -> None:
    shape = read_architecture(LLAMA | {"num_kv_shared_layers": 1})
    assert (shape.layers, shape.attention[0].layers) == (4, 3)


def test_experts_have_their_own_width() -> None:
    shape = read_architecture(
        LLAMA | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512}
    )
    assert (shape.experts, shape.experts_per_token, shape.intermediate_size) == (8, 2, 512)
    none = read_architecture(LLAMA | {"num_experts": 0, "moe_intermediate_size": 0})
    assert (none.experts, none.intermediate_size) == (None, 4096)


@pytest.mark.parametrize(("settings", "method"), [
    (None, None),
    ({"quant_method": "mxfp4"}, "mxfp4"),
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
    ({"quant_method": "fbgemm_fp8"}, "fp8"),
    ({"quant_method": "awq"}, "awq"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
    ({"quant_method": "modelopt", "quant_algo": "W4"}, "modelopt"),
    (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"weights": {"type": "float", "num_bits": 8}}},
        },
        "fp8",
    ),
    (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {
                "group_0": {"weights": {"type": "float", "num_bits": 4, "group_size": 16}}
            },
        },
        "nvfp4",
    ),
    ({"quant_method": "compressed-tensors", "config_groups": {"g": 7}}, "compressed-tensors"),
])  # fmt: skip
def test_quantization(settings: Any, method: str | None) -> None:
    assert read_quantization(LLAMA | {"quantization_config": settings}) == method
    assert read_quantization({"text_config": LLAMA | {"quantization_config": settings}}) == method


@pytest.mark.parametrize(("change", "text"), [
    ({"hidden_size": None}, "it has no hidden_size"),
    ({"num_attention_heads": 5000}, "head_dim"),
    ({"layer_types": ["full_attention"]}, "layer_types is no list of"),
    ({"layer_types": ["sliding_attention"] * 4}, "it has no sliding_window"),
])  # fmt: skip
def test_an_invalid_number_is_reported(change: dict[str, Any], text: str) -> None:
    with raises_code("config-damaged", CheckpointError) as refused:
        read_architecture(LLAMA | change)
    assert "config.json" in refused.value.message
    assert text in refused.value.message
    assert refused.value.fix


LINEAR = LLAMA | {"layer_types": ["linear_attention", "full_attention"] * 2}


def test_a_published_config_without_sizes_is_not_damaged() -> None:
    with raises_code("not-estimated", CheckpointError) as refused:
        read_architecture({"architectures": ["HfMoondream"], "model_type": "moondream1"})
    assert "HfMoondream" in refused.value.message


@pytest.mark.parametrize(("config", "change", "text"), [
    (public.DEEPSEEK_V3, {"qk_rope_head_dim": "64"}, "qk_rope_head_dim is '64'"),
    (public.DEEPSEEK_V3, {"kv_lora_rank": -1}, "kv_lora_rank is -1"),
    (LINEAR, {"linear_attn_config": [1]}, "linear_attn_config is [1], not an"),
    (public.QWEN3_NEXT, {"linear_key_head_dim": None}, "no linear_key_head_dim"),
    (public.QWEN3_NEXT, {"layer_types": ["mamba"]}, "layer_types is no list of"),
])  # fmt: skip
def test_an_invalid_size_of_a_cache_is_reported(
    config: dict[str, Any], change: dict[str, Any], text: str
) -> None:
    with raises_code("config-damaged", CheckpointError) as refused:
        read_architecture(config | change)
    assert text in refused.value.message


# The dtype in which vLLM serves a checkpoint.
@pytest.mark.parametrize(("saved", "served"), [
    ("float32", "bfloat16"),
    ("torch.float32", "bfloat16"),
    ("float64", "bfloat16"),
    ("float8_e4m3fn", "bfloat16"),
    ("bfloat16", "bfloat16"),
    ("float16", "float16"),
    ("half", "float16"),
])  # fmt: skip
def test_a_target_in_float32_is_served_in_bfloat16(saved: str, served: str) -> None:
    assert read_dtype({"dtype": saved}) == served
    assert read_dtype({"text_config": {"torch_dtype": saved}, "dtype": "float16"}) == served


def tensor(dtype: str, size: int) -> Tensor:
    return Tensor(dtype, (10,), size)


def test_wide_weights_take_16_bits_once_they_are_loaded() -> None:
    stored = {
        "q": tensor("F32", 40),
        "k": tensor("F64", 80),
        "v": tensor("BF16", 20),
        "o": tensor("F16", 20),
        "experts": tensor("U8", 10),
        "d2t": tensor("I64", 80),
    }
    sizes = {name: loaded.size for name, loaded in served_tensors(stored).items()}
    assert sizes == {"q": 20, "k": 20, "v": 20, "o": 20, "experts": 10, "d2t": 80}


def test_the_scales_of_quantized_weights_stay_wide() -> None:
    stored = {"a.weight_scale_inv": tensor("F32", 40), "norm.weight": tensor("F32", 40)}
    loaded = served_tensors(stored, "fp8")
    assert [loaded[name].size for name in stored] == [40, 20]
