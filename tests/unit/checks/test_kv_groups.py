"""The groups of the KV cache that hold a drafter's layers, as vLLM assigns them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.catalog.schema import AttentionGroup
from peagle.checks.rules.head_layout import draft_groups
from peagle.vllm.defaults import PADDING_RATIO

few = st.integers(1, 64)


def full(layers: int, kv_heads: int = 8, head_dim: int = 64) -> AttentionGroup:
    return AttentionGroup(kind="full", layers=layers, kv_heads=kv_heads, head_dim=head_dim)


def sliding(
    layers: int, kv_heads: int = 8, head_dim: int = 64, window: int = 128
) -> AttentionGroup:
    return AttentionGroup(
        kind="sliding", layers=layers, kv_heads=kv_heads, head_dim=head_dim, window=window
    )


@pytest.mark.parametrize(("target", "draft", "groups"), [
    ((sliding(12), full(12)), full(4), 1),
    # A small hybrid spreads the layers of a deep head.
    ((sliding(2), full(2)), full(4), 3),
    # Gemma's head has a group of its own.
    ((sliding(50, 16, 256, 1024), full(10, 4, 512)), full(4, 8, 128), 1),
    # Pages that do not divide are left to vLLM.
    ((sliding(4), full(4)), full(2, kv_heads=3), None),
])  # fmt: skip
def test_groups_with_layers_of_the_drafter(
    target: tuple[AttentionGroup, ...], draft: AttentionGroup, groups: int | None
) -> None:
    assert draft_groups(target, (draft,)) == groups


@given(slides=few, fulls=few, draft=few)
def test_groups_are_those_of_vllms_own_assignment(slides: int, fulls: int, draft: int) -> None:
    """vLLM's own way, layer by layer: layers[i::groups] is the i-th group."""
    fewest, most = sorted((slides, fulls + draft))
    size = most if most < fewest * PADDING_RATIO else fewest
    names = [f"target.{n}" for n in range(fulls)] + [f"draft.{n}" for n in range(draft)]
    count = -(-len(names) // size)
    dealt = [names[i::count] for i in range(count)]
    holding = sum(any(name.startswith("draft") for name in group) for group in dealt)
    assert draft_groups((sliding(slides), full(fulls)), (full(draft),)) == holding
