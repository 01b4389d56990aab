"""Makes an engine with dummy weights do the work of one with real weights.

vLLM would share equal tensors, send all tokens to the same experts, and propose one token at all
positions.
"""

from __future__ import annotations

from functools import partial
from typing import Any

SERIALIZATION = {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
"""Environment in which vLLM sends a function to its worker (``experts_touched``)."""


def keep_own_tensors(names: tuple[str, ...]) -> None:
    """Make a head with dummy weights keep these tensors, as if its checkpoint contained them.

    Dummy weights of one shape are equal, and vLLM shares equal tensors, so one row of the head's
    tensor is changed.
    """
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    load = DummyModelLoader.load_weights

    def load_weights(self: Any, model: Any, model_config: Any) -> None:
        load(self, model, model_config)
        remove_biases(model)
        if "Eagle3" not in type(model).__name__:
            return
        if "embed_tokens" in names:
            model.has_own_embed_tokens = True
            model.model.embed_tokens.weight.data[:1].add_(1)
        if "lm_head" in names:
            model.has_own_lm_head = True
            model.lm_head.weight.data[:1].add_(1)

    DummyModelLoader.load_weights = load_weights


def remove_biases(model: Any) -> None:
    """Set the biases of dummy weights to zero, so that each token chooses its own experts.

    They are as large as the other weights, so what every token has in common would outweigh what
    it has of its own. A router's logit would be 0.00002 from the token and 0.0006 from its bias,
    since the weights of norms are dummy weights too: all tokens of GPT-OSS would use the same
    experts.
    """
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.data.zero_()


def draft_random_tokens() -> None:
    """Make drafters of vLLM's V1 model runner propose random tokens, after their usual work.

    With dummy weights a parallel drafter proposes one and the same token at every masked position
    of every request: the target verifies it with the same experts each time, so a step would read
    far fewer experts than that of a trained drafter, whose tokens differ.
    """
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    propose = SpecDecodeBaseProposer.propose

    def proposed(self: Any, *args: Any, **kwargs: Any) -> Any:
        drafts = propose(self, *args, **kwargs)
        vocabulary = self.vllm_config.model_config.get_vocab_size()
        return drafts.random_(0, vocabulary)

    SpecDecodeBaseProposer.propose = proposed


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
