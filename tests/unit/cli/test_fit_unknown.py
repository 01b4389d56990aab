"""Checkpoints whose memory ``peagle fit`` cannot calculate, or only in part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from peagle.errors import UserError
from tests.unit.checks.damage import WEIGHTS, RawTensor, write_tensors
from tests.unit.cli.fitting import H200, peagle, shown

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "intermediate_size": 4096,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
SMALL = (*H200, "--max-num-seqs", "8")


def written(
    place: Path, config: dict[str, Any], tensors: dict[str, RawTensor] | None = None
) -> str:
    """A folder with this config.json and, where given, weights; returns where."""
    (place / "config.json").write_text(json.dumps(config))
    if tensors:
        write_tensors(place / WEIGHTS, tensors)
    return str(place)


@pytest.mark.parametrize(
    "more",
    [
        {"model_type": "rwkv", "layer_types": ["rwkv", "full_attention"] * 2},
        {"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*"},
        {"model_type": "deepseek_v4", "compress_ratios": [1, 4, 4, 128]},
        {"model_type": "nemotron-nas", "block_configs": [{"attention": {"no_op": True}}]},
    ],
)
def test_a_cache_that_is_not_modelled_counts_as_full_and_is_named(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    for config in (LLAMA | more, {"text_config": LLAMA | more}):
        fit = shown("--target", written(tmp_path, config), *SMALL)
        assert "cache-estimated" in {finding["code"] for finding in fit["findings"]}


HQQ = LLAMA | {"quantization_config": {"quant_method": "hqq"}}
AWQ = LLAMA | {"quantization_config": {"quant_method": "awq", "bits": 4}}


def test_weights_of_unknown_size_are_refused_where_no_header_tells_it(tmp_path: Path) -> None:
    wrong = peagle("--target", written(tmp_path, HQQ), *SMALL).exception
    assert isinstance(wrong, UserError)
    assert "quantized with hqq" in str(wrong)
    assert "weight files" in str(wrong)


def test_embeddings_in_the_headers_are_counted_and_mentioned(tmp_path: Path) -> None:
    packed = RawTensor("I32", (1024, 512), bytes(4 * 1024 * 512))
    names = [
        f"model.layers.{n}.mlp.{part}_proj.qweight" for n in range(4) for part in ("up", "gate")
    ]
    fit = shown("--target", written(tmp_path, AWQ, dict.fromkeys(names, packed)), *SMALL)
    assert fit["weights_gib"] == pytest.approx(8 * 2 / 1024, abs=0.004), "8 tensors of 2 MiB"
    found = [finding for finding in fit["findings"] if finding["code"] == "quantization-estimated"]
    assert [finding["level"] for finding in found] == ["warning"]
    assert "awq" in found[0]["message"]
