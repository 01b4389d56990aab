"""Write the three checkpoints in the layout that vLLM loads."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from examples.tiny.heads import Head, PEagle
from examples.tiny.layers import Shape
from examples.tiny.target import AUX_LAYERS, Target
from examples.tiny.tokenizer import BEGIN_ID, END_ID, MASK_ID, PAD_ID

Json = dict[str, object]


def llama_config(shape: Shape, architecture: str) -> Json:
    """The config.json keys that the target and the heads share."""
    return {
        "architectures": [architecture],
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
        "torch_dtype": "bfloat16",
        "vocab_size": shape.vocab,
    }


def head_config(head: Head) -> Json:
    """A head's config.json; the P-EAGLE head names its placeholder token."""
    config = llama_config(head.shape, "LlamaForCausalLMEagle3") | {
        "draft_vocab_size": head.shape.vocab,
        "target_hidden_size": head.shape.hidden,
        "tie_word_embeddings": False,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": list(AUX_LAYERS),
            "use_aux_hidden_state": True,
        },
    }
    return config | {"ptd_token_id": MASK_ID} if isinstance(head, PEagle) else config


def write_target(target: Target, folder: Path) -> None:
    """config.json, generation_config.json and model.safetensors of the target."""
    config = llama_config(target.shape, "LlamaForCausalLM") | {"tie_word_embeddings": True}
    _write_json(folder / "config.json", config)
    generation: Json = {
        "bos_token_id": BEGIN_ID,
        "eos_token_id": END_ID,
        "pad_token_id": PAD_ID,
        "do_sample": False,
        "temperature": 0.0,
    }
    _write_json(folder / "generation_config.json", generation)
    _write_weights(target, folder, prefix="model.")


def write_head(head: Head, folder: Path) -> None:
    """config.json and model.safetensors of a head; embedding and output are the target's."""
    _write_json(folder / "config.json", head_config(head))
    _write_weights(head, folder, prefix="")


def _write_json(path: Path, content: Json) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")


def _write_weights(model: nn.Module, folder: Path, prefix: str) -> None:
    weights = {
        prefix + name: weight.detach().to("cpu", torch.bfloat16).contiguous()
        for name, weight in model.state_dict().items()
    }
    path = folder / "model.safetensors"
    save_file(weights, path, metadata={"format": "pt"})
    path.chmod(0o644)
