"""A head that cannot work with its target is refused before the engine starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from peagle.catalog import load_catalog
from peagle.data import data_folder
from peagle_serve.checks import check_pair
from peagle_serve.contract import InvalidEnvironment
from tests.unit.containers.weights import HEAD, HEAD_TENSORS, TARGET, pair

AUX = "eagle_aux_hidden_state_layer_ids"


def layers(*numbers: Any) -> dict[str, Any]:
    return {**HEAD, "eagle_config": {AUX: list(numbers)}}


def without(document: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in names}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"target": {"text_config": TARGET}},
        {"head": without(HEAD, "eagle_config") | {AUX: [2, 5, 7]}},
        {"head": without(HEAD, "eagle_config")},
        {"head": without(HEAD, "ptd_token_id") | {"mask_token_id": 2}},
        {"head": without(HEAD, "target_hidden_size")},
        {"target": {"architectures": ["Unknown"]}},
        {
            "head": {
                **without(HEAD, "eagle_config"),
                "architectures": ["Qwen3ForCausalLM"],
                AUX: [1, 9],
            },
            "tensors": {"fc.weight": [4, 16], "mask_hidden": [16]},
        },
        {"head": layers(1, 9), "tensors": {"fc.weight": [4, 16], "mask_hidden": [16]}},
    ],
)
def test_a_matching_pair_is_accepted(tmp_path: Path, change: dict[str, Any]) -> None:
    check_pair(pair(tmp_path, **change))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"target": {**TARGET, "hidden_size": 16}}, "a target of hidden size 8; this one has 16"),
        ({"head": layers(2, 5, 11)}, "target layers [2, 5, 11]; the target has 10"),
        ({"head": layers(2, 5, -1)}, "[2, 5, -1]"),
        ({"head": layers(2, 5, "x")}, "[2, 5, 'x']"),
        ({"head": layers(2, 5, 5)}, "auxiliary layers are [2, 5, 5]"),
        (
            {"head": without(HEAD, "eagle_config"), "target": {**TARGET, "num_hidden_layers": 6}},
            "with 6 target layers, vLLM's default auxiliary layers are [2, 3, 3], which repeats",
        ),
        (
            {"head": layers(2, 5), "tensors": HEAD_TENSORS},
            "fc.weight has input width 24; 2 target layers x 8 = 16 expected",
        ),
        ({"tensors": without(HEAD_TENSORS, "mask_hidden")}, "the head has no mask_hidden"),
        ({"tensors": {**HEAD_TENSORS, "mask_hidden": [1, 8]}}, "has 8 values; its fc takes 24"),
        (
            {"target": {**TARGET, "vocab_size": 999}, "head": {**HEAD, "vocab_size": 1024}},
            "the head's vocab_size is 1024; the target's vocabulary has 999 tokens",
        ),
        (
            {"head": without(HEAD, "ptd_token_id")},
            "none of dflash_config.mask_token_id, mask_token_id, ",
        ),
    ],
)
def test_a_mismatched_pair_is_refused(tmp_path: Path, change: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidEnvironment) as refused:
        check_pair(pair(tmp_path, **change))

    assert refused.value.message.startswith("head and target do not match: ")
    assert what in refused.value.message
    assert refused.value.fix


@pytest.mark.parametrize(
    "speculation",
    [{"method": "draft_model"}, {"method": "dflash"}, {"model": "hub/head"}],
)
def test_what_cannot_be_checked_is_left_to_vllm(
    tmp_path: Path, speculation: dict[str, Any]
) -> None:
    environment = pair(tmp_path, tensors=without(HEAD_TENSORS, "mask_hidden"))
    config = json.loads(environment["SM_VLLM_SPECULATIVE_CONFIG"]) | speculation

    check_pair({**environment, "SM_VLLM_SPECULATIVE_CONFIG": json.dumps(config)})


@pytest.mark.parametrize("parallel", [False, None])
def test_a_p_eagle_head_without_parallel_drafting_is_refused(tmp_path: Path, parallel: Any) -> None:
    environment = pair(tmp_path)
    config = json.loads(environment["SM_VLLM_SPECULATIVE_CONFIG"])
    config = (
        {**config, "parallel_drafting": parallel}
        if parallel is not None
        else without(config, "parallel_drafting")
    )

    with pytest.raises(InvalidEnvironment) as refused:
        check_pair({**environment, "SM_VLLM_SPECULATIVE_CONFIG": json.dumps(config)})

    assert "the head is P-EAGLE" in refused.value.message
    assert '"parallel_drafting": true' in refused.value.fix


@pytest.mark.parametrize("head", ["p-eagle", "eagle3"])
def test_the_bundled_pair_is_accepted(head: str) -> None:
    folder = data_folder("model_catalog") / "peagle" / "tiny"
    assert "peagle/tiny" in load_catalog().targets
    config = {
        "method": "eagle3",
        "model": str(folder / head),
        "num_speculative_tokens": 5,
        "parallel_drafting": head == "p-eagle",
    }

    check_pair(
        {
            "SM_VLLM_MODEL": str(folder / "target"),
            "SM_VLLM_SPECULATIVE_CONFIG": json.dumps(config),
        }
    )
