"""A plugin of vLLM, loaded in each of its processes: dummy weights that do the work of real ones.

vLLM would share equal tensors between head and target, send all tokens to the same experts, and
draft one token at all positions.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

OWN_TENSORS = "PEAGLE_DUMMY_OWN_TENSORS"
"""Variable: which of ``embed_tokens`` and ``lm_head`` the head's checkpoint has."""


def install() -> None:
    """Replace what vLLM loads, and what its drafters propose."""
    keep_own_tensors(os.environ.get(OWN_TENSORS, "").split(","))
    draft_random_tokens()
    draft_random_tokens_on_v2()


def keep_own_tensors(names: Collection[str]) -> None:
    """Make a head keep these tensors. Dummy weights of one shape are equal, and vLLM shares equal
    tensors, so one row of the head's is changed."""
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    load = DummyModelLoader.load_weights

    def load_weights(self: Any, model: Any, model_config: Any) -> None:
        load(self, model, model_config)
        # Biases are as large as the other weights, so what all tokens have in common would outweigh
        # what each has of its own, and all would use the same experts.
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.data.zero_()
        if "Eagle3" not in type(model).__name__:
            return
        if "embed_tokens" in names:
            model.has_own_embed_tokens = True
            model.model.embed_tokens.weight.data[:1].add_(1)
        if "lm_head" in names:
            model.has_own_lm_head = True
            model.lm_head.weight.data[:1].add_(1)

    DummyModelLoader.load_weights = load_weights


def draft_random_tokens() -> None:
    """Make drafters of model runner V1 propose random tokens, after their usual work: verifying one
    token again and again reads far fewer experts than a trained drafter's tokens do."""
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    propose = SpecDecodeBaseProposer.propose

    def proposed(self: Any, *args: Any, **kwargs: Any) -> Any:
        drafts = propose(self, *args, **kwargs)
        return drafts.random_(0, self.vllm_config.model_config.get_vocab_size())

    SpecDecodeBaseProposer.propose = proposed


def draft_random_tokens_on_v2() -> None:
    """The same for model runner V2, whose n-gram drafter has no drafts of its own choice."""
    from vllm.v1.worker.gpu import spec_decode

    make = spec_decode.init_speculator

    def init_speculator(config: Any, *args: Any, **kwargs: Any) -> Any:
        speculator = make(config, *args, **kwargs)
        propose, size = speculator.propose, config.model_config.get_vocab_size()

        def proposed(*args: Any, **kwargs: Any) -> Any:
            return propose(*args, **kwargs).random_(0, size)

        if config.speculative_config.method != "ngram":
            speculator.propose = proposed
        return speculator

    spec_decode.init_speculator = init_speculator
