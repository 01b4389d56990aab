"""For any config.json and any tensors of a head, a check returns findings or raises one error; the
fuzzed parsers do the same for whole pairs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.catalog.schema import AttentionGroup
from peagle.checkpoints import Checkpoint, Tensor
from peagle.checks import Case, check
from peagle.checks.rules.head_layout import draft_groups
from peagle.errors import CheckpointError
from peagle.vllm.defaults import PADDING_RATIO
from tests.support import examples
from tests.unit.checks.cases import GEOMETRY, catalog_case, read

HEAD = dict(read(GEOMETRY / "gpt-oss-20b/p-eagle").config)
MORE_KEYS = (
    "speculators_model_type", "speculators_config", "transformer_layer_config", "mask_token_id",
    "dflash_config", "eagle_aux_hidden_state_layer_ids", "num_aux_hidden_states", "norm_before_fc",
    "quantization_config", "text_config", "fc_norm",
)  # fmt: skip
scalars = st.none() | st.booleans() | st.integers(-3, 300_000) | st.floats() | st.text(max_size=8)
words = st.sampled_from(
    ["peagle", "eagle3", "llama", "qwen3", "verifier", "name_or_path", "proposal_methods",
     "speculative_tokens", "architectures", "eagle_aux_hidden_state_layer_ids", "mask_token_id"]
)  # fmt: skip
values = st.recursive(
    scalars | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=8,
)
names = st.sampled_from(
    ["fc.weight", "mask_hidden", "d2t", "t2d", "lm_head.weight", "embed_tokens.weight",
     "midlayer.self_attn.q_proj.weight", "layers.3.mlp.up_proj.weight", "layers.99.x", "", "."]
) | st.text(max_size=12)  # fmt: skip
shapes = st.lists(st.integers(0, 10_000), max_size=4).map(tuple)
tensors = st.dictionaries(
    names,
    st.builds(Tensor, st.sampled_from(["BF16", "I64", "U8", "X"]), shapes, st.just(0)),
    max_size=6,
)


def check_or_refuse(case: Case) -> None:
    try:
        findings = check(case)
    except CheckpointError:
        return
    assert all(finding.message for finding in findings)
    assert all(finding.fix for finding in findings if finding.level != "note")


@pytest.mark.thorough
@settings(max_examples=examples(150), deadline=None)
@given(
    changes=st.dictionaries(st.sampled_from([*HEAD, *MORE_KEYS]), values, max_size=4),
    header=st.none() | tensors,
    parallel=st.booleans(),
)
def test_any_head(
    changes: dict[str, Any], header: dict[str, Tensor] | None, parallel: bool
) -> None:
    case = catalog_case("gpt-oss-20b" if parallel else "gpt-oss-20b+eagle3")
    check_or_refuse(replace(case, drafter_checkpoint=Checkpoint("/head", HEAD | changes, header)))


# The arithmetic that rules use, for any numbers.
few = st.integers(1, 64)


def full(layers: int, kv_heads: int = 8, head_dim: int = 64) -> AttentionGroup:
    return AttentionGroup(kind="full", layers=layers, kv_heads=kv_heads, head_dim=head_dim)


def sliding(
    layers: int, kv_heads: int = 8, head_dim: int = 64, window: int = 128
) -> AttentionGroup:
    return AttentionGroup(
        kind="sliding", layers=layers, kv_heads=kv_heads, head_dim=head_dim, window=window
    )


@pytest.mark.parametrize(
    ("target", "draft", "groups"),
    [
        ((sliding(12), full(12)), full(4), 1),
        # A small hybrid spreads the layers of a deep head.
        ((sliding(2), full(2)), full(4), 3),
        # Gemma's head has a group of its own.
        ((sliding(50, 16, 256, 1024), full(10, 4, 512)), full(4, 8, 128), 1),
        # Pages that do not divide are left to vLLM.
        ((sliding(4), full(4)), full(2, kv_heads=3), None),
    ],
)
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
