"""A draft head as it was read: the container's head, and what only the toolkit asks of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from peagle.catalog.schema import AttentionGroup
from peagle.checkpoints.models import Checkpoint
from peagle.errors import DamagedCheckpoint
from peagle_serve import heads as parser
from peagle_serve.heads import DEFAULT_AUXILIARY, MASK, HeadConfig


class Head(parser.Head):
    """The head in ``checkpoint``. Raises DamagedCheckpoint for an invalid value."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint.config, checkpoint.tensors or {})
        self.location = checkpoint.location
        _check(self.config)

    @property
    def has_mask(self) -> bool | None:
        """Whether it has the tensor of the masked slots; ``None``: its headers were not read."""
        return self.named(MASK) is not None if self.tensors else None

    def named(self, part: str) -> str | None:
        """The first tensor with ``part`` in its name."""
        return next((name for name in self.tensors if part in name), None)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of the tensor, if the head has it."""
        return self.tensors[name].shape if name in self.tensors else None


def read_head(config: Mapping[str, Any]) -> HeadConfig:
    """The head that ``config`` describes. Raises DamagedCheckpoint for an invalid value."""
    head = parser.read_head(config)
    _check(head)
    return head


def _check(head: HeadConfig) -> None:
    if head.invalid:
        raise DamagedCheckpoint(
            f"config.json of the head: {head.invalid}",
            "correct the head's config.json, or copy it again",
            code="config-damaged",
        )


def trained_k(config: Mapping[str, Any]) -> int | None:
    """The K for which a head was trained: ``speculative_tokens`` of a P-EAGLE head in the
    speculators format; ``None`` where the config does not say."""
    if config.get("speculators_model_type") != "peagle":
        return None
    try:
        proposed = config["speculators_config"]["proposal_methods"][0]["speculative_tokens"]
    except (LookupError, TypeError):
        return None
    return proposed if type(proposed) is int and proposed > 0 else None


def read_attention(head: HeadConfig) -> tuple[AttentionGroup, ...]:
    """The head's attention layers by window, full attention first; empty when the config does not
    describe them."""
    kv_heads, head_dim = head.kv_heads, head.head_dim
    if not (head.layers and kv_heads and head_dim):
        return ()
    return tuple(
        AttentionGroup(
            kind="sliding" if window else "full",
            layers=layers,
            kv_heads=kv_heads,
            head_dim=head_dim,
            window=window,
        )
        for window, layers in sorted(Counter(head.windows).items(), key=lambda item: item[0] or 0)
    )


def weight_bytes(head: HeadConfig) -> int | None:
    """Approximate bytes of such a head in bfloat16; ``None`` when the config lacks sizes, or has
    sizes that no file can have.

    ``fc``, embedding and output matrix, and per layer attention (twice as wide at its input in
    the first layer) and a gated feed-forward block, as vLLM's EAGLE-3 layout has them.
    """
    h, i, vocab = head.hidden_size, head.intermediate_size, head.vocab_size
    if h is None or i is None or vocab is None or not (group := read_attention(head)):
        return None
    auxiliary = len(head.auxiliary_layers or ()) or DEFAULT_AUXILIARY
    per_layer = 2 * h * h + 2 * h * group[0].kv_heads * group[0].head_dim + 3 * h * i
    parameters = (
        auxiliary * (head.target_hidden_size or h) * h
        + vocab * h
        + (head.draft_vocab_size or vocab) * h
        + (head.layers or 1) * per_layer
        + h * h
    )
    return 2 * parameters if parameters < 2**52 else None
