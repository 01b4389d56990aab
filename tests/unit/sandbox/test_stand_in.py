"""The stand-in for a target that this machine cannot run."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.catalog import load_catalog
from peagle.sandbox.launch_spec import DRAFTER_PATH, TARGET_PATH, stand_in_for

TINY = load_catalog().targets["peagle/tiny"]
REQUESTED = {
    "SM_VLLM_MODEL": "openai/gpt-oss-20b",
    "SM_VLLM_REVISION": "abc",
    "SM_VLLM_SERVED_MODEL_NAME": "openai/gpt-oss-20b",
    "SM_VLLM_MAX_MODEL_LEN": "131072",
    "SM_VLLM_MAX_NUM_SEQS": "64",
    "SM_VLLM_NO_ENABLE_PREFIX_CACHING": "true",
}
P_EAGLE = {"method": "eagle3", "parallel_drafting": True, "num_speculative_tokens": 5}


def speculating(**config: Any) -> dict[str, str]:
    return {**REQUESTED, "SM_VLLM_SPECULATIVE_CONFIG": json.dumps(config)}


def config_of(environment: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(environment["SM_VLLM_SPECULATIVE_CONFIG"])
    return found


def test_the_target_is_replaced_and_the_plans_settings_stay() -> None:
    environment = stand_in_for(REQUESTED, TINY).environment
    assert environment == {
        "SM_VLLM_MODEL": TARGET_PATH,
        "SM_VLLM_SERVED_MODEL_NAME": "openai/gpt-oss-20b",
        "SM_VLLM_MAX_MODEL_LEN": "2048",
        "SM_VLLM_MAX_NUM_SEQS": "64",
        "SM_VLLM_NO_ENABLE_PREFIX_CACHING": "true",
        "SM_VLLM_DTYPE": "float32",
    }


def test_every_change_has_a_note() -> None:
    notes = "\n".join(stand_in_for(speculating(**{**P_EAGLE, "model": "a/b"}), TINY).notes)
    for note in (
        "SM_VLLM_REVISION=abc is left out: it belongs to openai/gpt-oss-20b",
        "SM_VLLM_MAX_MODEL_LEN=131072 becomes 2048",
        "the drafter is tiny's P-EAGLE head",
        "SM_VLLM_DTYPE=float32: ",
    ):
        assert note in notes


def test_the_served_name_is_the_requested_one() -> None:
    environment = {"SM_VLLM_MODEL": "Qwen/Qwen3-8B"}
    served = stand_in_for(environment, TINY).environment["SM_VLLM_SERVED_MODEL_NAME"]
    assert served == "Qwen/Qwen3-8B"


@pytest.mark.parametrize(
    ("requested", "drafter", "expected"),
    [
        (P_EAGLE, "p-eagle", {"method": "eagle3", "parallel_drafting": True}),
        ({"method": "eagle3", "num_speculative_tokens": 5}, "eagle3", {"method": "eagle3"}),
        (
            {"method": "dflash", "num_speculative_tokens": 5},
            "p-eagle",
            {"method": "eagle3", "parallel_drafting": True},
        ),
    ],
)
def test_the_head_is_tinys_own_of_the_same_kind(
    requested: dict[str, Any], drafter: str, expected: dict[str, Any]
) -> None:
    found = stand_in_for(speculating(**requested, model="a/b", revision="r"), TINY)
    assert found.drafter is not None
    assert found.drafter.name == drafter
    assert config_of(found.environment) == {
        **expected,
        "model": DRAFTER_PATH,
        "num_speculative_tokens": 5,
    }


def test_a_method_that_tiny_lacks_has_a_note() -> None:
    found = stand_in_for(speculating(method="mtp", num_speculative_tokens=1), TINY)
    assert any("tiny has no drafter for method mtp" in note for note in found.notes)


def test_ngram_speculation_stays_unchanged() -> None:
    environment = speculating(method="ngram", num_speculative_tokens=5, prompt_lookup_max=4)
    found = stand_in_for(environment, TINY)
    assert found.drafter is None
    assert (
        found.environment["SM_VLLM_SPECULATIVE_CONFIG"] == environment["SM_VLLM_SPECULATIVE_CONFIG"]
    )


def test_an_invalid_speculative_configuration_stays_for_serve_to_refuse() -> None:
    environment = {**REQUESTED, "SM_VLLM_SPECULATIVE_CONFIG": "{not json"}
    assert stand_in_for(environment, TINY).environment["SM_VLLM_SPECULATIVE_CONFIG"] == "{not json"


@given(st.integers(1, 100))
def test_k_is_at_most_what_the_head_was_trained_for(k: int) -> None:
    trained = next(one.k_trained for one in TINY.drafters if one.name == "p-eagle")
    assert trained is not None
    found = stand_in_for(speculating(**{**P_EAGLE, "num_speculative_tokens": k}), TINY)
    assert config_of(found.environment)["num_speculative_tokens"] == min(k, trained)
    assert any(f"num_speculative_tokens={k} becomes" in note for note in found.notes) == (
        k > trained
    )


@given(st.integers(1, 10**6))
def test_the_context_is_at_most_that_of_tiny(length: int) -> None:
    environment = {**REQUESTED, "SM_VLLM_MAX_MODEL_LEN": str(length)}
    found = stand_in_for(environment, TINY).environment
    assert found["SM_VLLM_MAX_MODEL_LEN"] == str(min(length, 2048))
