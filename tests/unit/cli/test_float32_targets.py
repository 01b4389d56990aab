"""Targets that were saved in float32, of which vLLM serves half as many bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.unit.cli.fitting import H200, folder, shown

SHORT = ("--max-model-len", "8192", "--max-num-seqs", "64")
LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}  # fmt: skip


def saved_as(dtype: str, place: Path, config: dict[str, Any]) -> str:
    """A folder with this config and no weights, saved in this type."""
    place.mkdir()
    (place / "config.json").write_text(json.dumps(config | {"torch_dtype": dtype}))
    return str(place)


def test_a_target_in_float32_takes_what_it_takes_in_bfloat16(tmp_path: Path) -> None:
    config = json.loads(Path(folder("qwen3-coder-30b"), "config.json").read_text())
    config.pop("dtype", None)
    fits = [
        shown("--target", saved_as(dtype, tmp_path / dtype, config), *H200, *SHORT)
        for dtype in ("float32", "bfloat16")
    ]
    assert fits[0]["terms"] == fits[1]["terms"]
    assert fits[0]["kv_cache_tokens"] == fits[1]["kv_cache_tokens"] > 500_000


def test_a_target_in_float32_fits_a_gpu_that_holds_half_of_its_files(tmp_path: Path) -> None:
    place = saved_as("float32", tmp_path / "llama", LLAMA_8B)
    fit = shown("--target", place, "--gpu-memory-gib", "23.6", *SHORT)
    assert fit["fits"]
    assert 14.5 < fit["weights_gib"] < 15.5
