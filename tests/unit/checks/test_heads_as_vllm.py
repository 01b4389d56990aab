"""Heads are read as vLLM 0.28.0 reads them, and fixes name the keys of the head's own format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from peagle.checks import Case, check
from peagle.checks.rules.head_layout import required
from peagle.findings import Finding
from peagle_serve.heads import read_head
from tests.unit.checks.cases import geometry_case, tiny_case
from tests.unit.checks.corpus_heads import FULL, SLIDING, layer_types

AUX = "eagle_aux_hidden_state_layer_ids"
INNER = "transformer_layer_config"


def found(case: Case, code: str) -> Finding:
    return next(finding for finding in check(case) if finding.code == code)


def codes(case: Case) -> set[str]:
    return {finding.code for finding in check(case) if finding.level != "note"}


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_qwen3_head_reads_as_many_layers_as_it_lists(count: int) -> None:
    config: dict[str, Any] = {
        "speculators_model_type": "eagle3",
        AUX: list(range(2, 2 + count)),
        INNER: {"model_type": "qwen3"},
    }
    assert read_head(config).built_for == count
    assert read_head({**config, INNER: {"model_type": "llama"}}).built_for == 3


@pytest.mark.parametrize(
    ("holder", "built_for"),
    [
        ({"eagle_config": {AUX: [2, 4, 5, 7]}}, 4),
        ({"num_aux_hidden_states": 4, AUX: [2, 4, 5, 7]}, 4),
        ({AUX: [2, 4, 5, 7]}, 3),
    ],
)
def test_a_list_beside_the_layers_of_a_speculators_head_counts(
    holder: dict[str, Any], built_for: int
) -> None:
    head = read_head({"speculators_model_type": "eagle3", INNER: holder})
    assert (head.built_for, head.auxiliary_layers or (2, 4, 5, 7)) == (built_for, (2, 4, 5, 7))


@pytest.mark.parametrize(
    ("architecture", "layers"),
    [
        ("LlamaForCausalLMEagle3", "llama"),
        ("Qwen3ForCausalLM", "qwen3"),
        ("Eagle3Qwen3ForCausalLM", "qwen3"),
        ("Eagle3Qwen3vlForCausalLM", "llama"),
    ],
)
def test_the_class_of_a_head_decides_its_layers(architecture: str, layers: str) -> None:
    head = read_head({"architectures": [architecture], "model_type": "qwen3"})
    assert head.model_type == layers


@pytest.mark.parametrize(
    ("model_type", "given", "expected"),
    [
        ("llama", {"attention_bias": True}, {"q_proj", "k_proj", "v_proj", "o_proj"}),
        ("llama", {"mlp_bias": True}, {"gate_proj", "up_proj", "down_proj"}),
        ("qwen3", {"attention_bias": True, "mlp_bias": True}, {"q_proj", "k_proj", "v_proj"}),
        ("qwen3", {}, set()),
    ],
)
def test_biases_are_those_of_the_class(
    model_type: str, given: dict[str, bool], expected: set[str]
) -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96,
             "num_hidden_layers": 1, "vocab_size": 32}  # fmt: skip
    layer = {"model_type": model_type, **sizes, **given}
    shapes = required(read_head({"speculators_model_type": "eagle3", INNER: layer}))
    assert shapes is not None
    assert {name.split(".")[-2] for name in shapes if name.endswith(".bias")} == expected


@pytest.mark.parametrize(
    ("kinds", "length", "expected"),
    [
        ([SLIDING] * 4, 4096, {"head-window"}),
        ([SLIDING] * 4, 2048, set()),
        ([FULL] * 4, 4096, set()),
        ([FULL, SLIDING, SLIDING, SLIDING], 2048, {"kv-group-rule"}),
    ],
)
def test_windows_of_a_real_head(
    kinds: list[str], length: int, expected: set[str], tmp_path: Path
) -> None:
    changes = {"layer_types": kinds, "sliding_window": 2048, "num_hidden_layers": len(kinds)}
    case = geometry_case(tmp_path, "qwen3-coder-30b", changes=changes, max_model_len=length)
    assert codes(case) - {"weights-unread", "long-context-head"} == expected


def test_one_group_lets_a_mixed_head_start(tmp_path: Path) -> None:
    damage = layer_types(FULL, *[SLIDING] * 3, window=4096)
    setting = {"disable-hybrid-kv-cache-manager": True}
    mixed = found(tiny_case(tmp_path / "mixed", damage), "kv-group-rule")
    assert mixed.options == ("--set", "disable-hybrid-kv-cache-manager=true")
    assert codes(tiny_case(tmp_path / "one", damage, settings=setting)) == set()


@pytest.mark.parametrize("token", [151645, 151643])
def test_a_mask_token_of_the_targets_own_is_a_warning(token: int, tmp_path: Path) -> None:
    case = geometry_case(tmp_path, "qwen3-coder-30b", changes={"ptd_token_id": token})
    assert found(case, "mask-token-used").level == "warning"
