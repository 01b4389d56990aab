"""Makes an engine with dummy weights do the work of one with real weights: the product's plugin
of vLLM, whose functions are called in this process, and how many experts the tokens reach."""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# The plugin imports nothing of the toolkit, whose dependencies a GPU host need not have.
sys.path.append(str(ROOT / "toolkit" / "peagle" / "engine" / "dummy_weights"))
_PLUGIN = import_module("peagle_dummy_weights")
keep_own_tensors = _PLUGIN.keep_own_tensors
draft_random_tokens = _PLUGIN.draft_random_tokens

SERIALIZATION = {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
"""Environment in which vLLM sends a function to its worker (``experts_touched``)."""


def experts_touched(llm: Any, tokens: int) -> float | None:
    """How many experts of a layer so many random tokens choose, in the mean of all layers.

    From the embeddings alone: with dummy weights a layer adds less to them than bfloat16 resolves.
    ``None`` for a target without experts. Needs ``SERIALIZATION`` in the engine's environment.
    """
    counts: list[float | None] = llm.apply_model(partial(_experts_touched, tokens=tokens))
    return counts[0]


def _experts_touched(model: Any, tokens: int) -> float | None:
    import torch

    decoder = getattr(model, "model", None)
    layers = [
        (layer.post_attention_layernorm.weight, router)
        for layer in getattr(decoder, "layers", ())
        if (router := getattr(layer.mlp, "router", None) or getattr(layer.mlp, "gate", None))
    ]
    if decoder is None or not layers:
        return None
    device = next(model.parameters()).device
    drawn = torch.randint(decoder.config.vocab_size, (tokens,), device=device)
    embedded = decoder.embed_input_ids(drawn)
    hidden = embedded.float()
    hidden *= torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + 1e-5)
    touched = 0
    for norm, router in layers:
        logits = router((hidden * norm.float()).to(embedded.dtype))
        logits = logits[0] if isinstance(logits, tuple) else logits
        chosen = logits.topk(decoder.config.num_experts_per_tok, dim=-1).indices
        touched += chosen.unique().numel()
    return round(touched / len(layers), 1)
