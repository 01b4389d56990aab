"""Into which groups vLLM divides the layers' key-value caches, and where the drafter's layers fall.

From vLLM's v1/core/kv_cache_utils.py (get_kv_cache_groups, _get_kv_cache_groups_uniform_page_size)
and v1/spec_decode/llm_base_proposer.py (validate_same_kv_cache_group).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from toolkit.catalog.models import AttentionGroup


def draft_groups(
    target: Sequence[AttentionGroup], draft: Sequence[AttentionGroup], ratio: float
) -> int | None:
    """In how many groups the drafter's layers lie; vLLM starts with one only.

    Layers of one kind and size share a bucket. A group has as many layers as the smallest bucket,
    or as the largest when that has fewer than ``ratio`` times as many. ``None``: the pages of the
    buckets cannot be brought to one size by arithmetic alone, so this does not tell.
    """
    kinds = {group.kind for group in (*target, *draft)}
    windows = {group.window for group in (*target, *draft)}
    if len(kinds) == 1 and len(windows) == 1:
        return 1
    buckets: dict[tuple[object, ...], int] = {}
    for group in (*target, *draft):
        buckets[_bucket(group)] = buckets.get(_bucket(group), 0) + group.layers
    pages = [_page(group) for group in (*target, *draft)]
    if any(max(pages) % page for page in pages):
        return None
    fewest, most = min(buckets.values()), max(buckets.values())
    size = most if most < fewest * ratio else fewest
    return max(_groups_of(group, buckets[_bucket(group)], size) for group in draft)


def _groups_of(group: AttentionGroup, layers: int, size: int) -> int:
    """The groups among which vLLM deals out a bucket, of which the drafter's layers are the last.

    vLLM deals layer after layer, so consecutive layers lie in as many groups as there are.
    """
    return min(group.layers, math.ceil(layers / size))


def _bucket(group: AttentionGroup) -> tuple[object, ...]:
    return (group.kind, group.kv_heads, group.head_dim, group.window)


def _page(group: AttentionGroup) -> int:
    """Numbers that one token takes in one layer."""
    return 2 * group.kv_heads * group.head_dim
