"""What follows from an architecture's numbers."""

from __future__ import annotations

from collections.abc import Iterable

from toolkit.catalog.models import AttentionGroup

BYTES_OF_BF16 = 2


def kv_bytes(
    groups: Iterable[AttentionGroup], tokens: int, element_bytes: int = BYTES_OF_BF16
) -> int:
    """Bytes of key-value cache of one sequence of ``tokens``.

    Each layer keeps a key and a value per token and key-value head; a sliding layer keeps no more
    tokens than its window. How an engine pads and pages this is not part of it.
    """
    return sum(
        2
        * group.layers
        * group.kv_heads
        * group.head_dim
        * element_bytes
        * (min(tokens, group.window) if group.window else tokens)
        for group in groups
    )
