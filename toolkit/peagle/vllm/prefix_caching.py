"""How much of a cached prompt a hit of vLLM's prefix cache saves with a drafter.

Hits are whole blocks, aligned to a multiple of the block size of every KV cache group. A drafter
that reads the target's hidden states needs the last matched block computed again
(``drop_eagle_block`` in v1/core/single_type_kv_cache_manager.py, vLLM 0.28.0).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

READS_HIDDEN_STATES = frozenset({"eagle", "eagle3", "mtp", "dflash", "dspark"})
"""Methods that cost a block per hit (``use_eagle`` in config/speculative.py, vLLM 0.28.0)."""

PREFIX_CACHING, NO_PREFIX_CACHING = "enable-prefix-caching", "no-enable-prefix-caching"
"""vLLM's argument, in its two spellings."""


def caches_prefixes(settings: Mapping[str, object]) -> bool:
    """Whether an engine with these arguments (without dashes) keeps its prefix cache on, as vLLM
    does by default; ``None`` is the value of one that the container leaves out."""
    off = settings.get(NO_PREFIX_CACHING) or settings.get(PREFIX_CACHING) is False
    return not off


def hit_alignment(group_blocks: Iterable[int]) -> int:
    """Tokens that a hit is a multiple of: the least common multiple of the groups' block sizes
    (``resolve_kv_cache_block_sizes`` in v1/core/kv_cache_utils.py, vLLM 0.28.0)."""
    return math.lcm(*group_blocks)


def tokens_lost(method: str | None, group_blocks: Iterable[int]) -> int:
    """The most tokens that a hit loses because of the drafter, beyond rounding to whole blocks.

    0 without a drafter and for drafts from the text itself. Every group drops its last block once
    for a hit, and what remains is rounded down to the alignment (``find_longest_cache_hit`` of
    ``HybridKVCacheCoordinator``), so that groups together lose one unit of the alignment.
    """
    return hit_alignment(group_blocks) if method in READS_HIDDEN_STATES else 0


def cached_tokens(reusable: int, method: str | None, group_blocks: Iterable[int]) -> int:
    """Of ``reusable`` tokens at the start of a prompt that are in the cache, those of a hit: 0 for
    a prefix shorter than what a hit loses."""
    blocks = tuple(group_blocks)
    unit = hit_alignment(blocks)
    return max(0, reusable // unit * unit - tokens_lost(method, blocks))
