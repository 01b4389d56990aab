"""The arithmetic that rules use, for any numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from peagle.catalog.schema import AttentionGroup
from peagle.checkpoints.heads import read_head
from peagle.checks.head_layout import draft_groups, required
from peagle_serve.heads import HeadConfig, default_layers

RATIO = 1.5
few = st.integers(1, 64)


def full(layers: int, kv_heads: int = 8) -> AttentionGroup:
    return AttentionGroup(kind="full", layers=layers, kv_heads=kv_heads, head_dim=64)


def sliding(layers: int) -> AttentionGroup:
    return AttentionGroup(kind="sliding", layers=layers, kv_heads=8, head_dim=64, window=128)


def test_gpt_oss_20b_with_four_layers_needs_the_later_ratio() -> None:
    assert draft_groups((sliding(12), full(12)), (full(4),), 1.25) == 2
    assert draft_groups((sliding(12), full(12)), (full(4),), RATIO) == 1


def test_a_small_hybrid_spreads_the_layers_of_a_deep_head() -> None:
    assert draft_groups((sliding(2), full(2)), (full(4),), RATIO) == 3


def test_gemmas_head_has_a_group_of_its_own() -> None:
    wide = AttentionGroup(kind="sliding", layers=50, kv_heads=16, head_dim=256, window=1024)
    deep = AttentionGroup(kind="full", layers=10, kv_heads=4, head_dim=512)
    head = AttentionGroup(kind="full", layers=4, kv_heads=8, head_dim=128)
    assert draft_groups((wide, deep), (head,), RATIO) == 1


@given(slides=few, fulls=few, draft=few)
def test_groups_are_those_of_vllms_own_assignment(slides: int, fulls: int, draft: int) -> None:
    """vLLM's own way, layer by layer: layers[i::groups] is the i-th group."""
    fewest, most = sorted((slides, fulls + draft))
    size = most if most < fewest * RATIO else fewest
    names = [f"target.{n}" for n in range(fulls)] + [f"draft.{n}" for n in range(draft)]
    count = -(-len(names) // size)
    dealt = [names[i::count] for i in range(count)]
    holding = sum(any(name.startswith("draft") for name in group) for group in dealt)
    assert draft_groups((sliding(slides), full(fulls)), (full(draft),), RATIO) == holding


def test_pages_that_do_not_divide_are_left_to_vllm() -> None:
    assert draft_groups((sliding(4), full(4)), (full(2, kv_heads=3),), RATIO) is None


def test_vllms_default_layers_are_distinct_from_seven_layers_on() -> None:
    shallow = {depth for depth in range(1, 40) if len(set(default_layers(depth))) < 3}
    assert shallow == {4, 5, 6}
    outside = {d for d in range(1, 40) if not all(0 <= n <= d for n in default_layers(d))}
    assert outside == {1, 2}


SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 100,
}


def head(**changes: object) -> HeadConfig:
    return read_head({"architectures": ["LlamaForCausalLMEagle3"], **SIZES, **changes})


def test_no_tensors_are_required_of_an_unknown_class() -> None:
    assert (
        required(head(model_type="deepseek_v3", architectures=["Eagle3DeepseekV3ForCausalLM"]))
        is None
    )
    assert required(head(quantization_config={"quant_method": "fp8"})) is None
