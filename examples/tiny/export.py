"""Write the target's checkpoint in the layout that vLLM loads."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from examples.tiny.target import Target
from examples.tiny.tokenizer import BEGIN_ID, END_ID, PAD_ID

Json = dict[str, object]


def config(target: Target) -> Json:
    """The target's config.json."""
    shape = target.shape
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "bos_token_id": BEGIN_ID,
        "eos_token_id": END_ID,
        "pad_token_id": PAD_ID,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.mlp,
        "max_position_embeddings": shape.positions,
        "mlp_bias": False,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.theta,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "vocab_size": shape.vocab,
    }


def write_target(target: Target, folder: Path) -> None:
    """config.json, generation_config.json and model.safetensors of the target."""
    _write_json(folder / "config.json", config(target))
    generation: Json = {
        "bos_token_id": BEGIN_ID,
        "eos_token_id": END_ID,
        "pad_token_id": PAD_ID,
        "do_sample": False,
        "temperature": 0.0,
    }
    _write_json(folder / "generation_config.json", generation)
    weights = {
        f"model.{name}": weight.detach().to("cpu", torch.bfloat16).contiguous()
        for name, weight in target.state_dict().items()
    }
    path = folder / "model.safetensors"
    save_file(weights, path, metadata={"format": "pt"})
    path.chmod(0o644)


def _write_json(path: Path, content: Json) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")
