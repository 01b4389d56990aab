"""For any config.json and any tensors of a head, a check returns findings or raises one error; the
fuzzed parsers do the same for whole pairs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.checkpoints import Checkpoint, Tensor
from peagle.checks import Case, check
from peagle.errors import CheckpointError
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
    found=st.none() | tensors,
    parallel=st.booleans(),
)
def test_any_head(changes: dict[str, Any], found: dict[str, Tensor] | None, parallel: bool) -> None:
    case = catalog_case("gpt-oss-20b" if parallel else "gpt-oss-20b+eagle3")
    check_or_refuse(replace(case, drafter_checkpoint=Checkpoint("/head", HEAD | changes, found)))
