"""What each vLLM version knows: arguments, variables, keys, methods; what users set in vain."""

from dataclasses import replace
from typing import Any

import pytest

from peagle.case import Case
from peagle.checks import check
from peagle.planning.overrides import parse_settings
from peagle.vllm.defaults import CAPTURE_SIZE, inferred_method
from peagle.vllm.environment import settings_in
from peagle.vllm.versions import find_facts
from tests.unit.checks.cases import OWN_IMAGE, catalog_case

CodeAndLevel = tuple[str, str]


def fixes(case: Case) -> dict[CodeAndLevel, str]:
    """Code and level of the findings, with the fix, without what only another version gets."""
    return {(f.code, f.level): str(f.fix) for f in check(case)}


@pytest.mark.parametrize(("vllm", "more", "expected", "fix"), [
    ("0.28.0", {"settings": {"max-num-queued-reqs": 8}}, ("engine-argument", "error"),
     "use vLLM 0.29.0 or later"),
    ("0.29.0", {"settings": {"max-num-queued-reqs": 8}}, None, ""),
    ("0.33.0", {"settings": {"device-memory-utilization": 0.9}}, None, ""),
    ("0.33.0", {"settings": {"max-num-queued-reqs": "many"}}, ("engine-value", "error"),
     "whole number"),
    ("0.28.0", {"settings": {CAPTURE_SIZE: 0}}, ("engine-value", "error"), "enforce-eager"),
    ("0.28.0", {"settings": {CAPTURE_SIZE: 1}}, None, ""),
    ("0.28.0", {"settings": {CAPTURE_SIZE: 0, "enforce-eager": True}}, None, ""),
    ("0.33.0", {"settings": {"ir-op-priority": "{}"}}, ("engine-argument", "note"),
     "leave --ir-op-priority out"),
    ("0.28.0", {"speculative_settings": {"fly_window_size": 2}}, ("speculative-setting", "error"),
     "use vLLM 0.33.0 or later"),
    ("0.33.0", {"speculative_settings": {"disable_lookahead_block_hashes": True}}, None, ""),
    ("0.33.0", {"speculative_settings": {"rejection_sample_method": "fly"}},
     ("speculative-setting", "error"), "lossless"),
    ("0.28.0", {"environment": {"VLLM_USE_V1": "1"}}, ("variable-ignored", "warning"), ""),
    ("0.28.0", {"environment": {"VLLM_ATTENTION_BACKEND": "FLASH_ATTN"}},
     ("variable-ignored", "warning"), "--set attention-backend"),
    ("0.28.0", {"environment": {"VLLM_HTTP_MAX_REQUEST_BODY_SIZE": "1"}},
     ("variable-ignored", "warning"), "use vLLM 0.3"),
    ("0.28.0", {"environment": {"VLLM_LOGGING_LEVEL": "INFO"}}, None, ""),
    ("0.28.0", {"environment": {"OPTION_SPECULATIVE_DRAFT_MODEL": "a/b"}},
     ("variable-ignored", "error"), "--drafter"),
    ("0.28.0", {"environment": {"option_max_model_len": "8192"}}, ("variable-ignored", "warning"),
     "--set"),
    ("0.28.0", {"environment": {"SERVING_LOAD_MODELS": "x"}}, ("variable-ignored", "warning"),
     "remove it"),
    ("0.28.0", {"environment": {"LMI_DEBUG": "1"}}, ("variable-ignored", "warning"), "remove"),
    ("0.28.0", {"environment": {"HF_MODEL_ID": "a/b"}}, ("variable-ignored", "warning"),
     "--model-source"),
    ("0.28.0", {"environment": {"HF_HUB_OFFLINE": "1"}}, None, ""),
])  # fmt: skip
def test_what_a_version_does_not_know_is_named(
    vllm: str, more: dict[str, Any], expected: CodeAndLevel | None, fix: str
) -> None:
    without = fixes(catalog_case("tiny", vllm=vllm, image=OWN_IMAGE)).keys()
    findings = fixes(catalog_case("tiny", vllm=vllm, image=OWN_IMAGE, **more))
    new = {key: text for key, text in findings.items() if key not in without}
    assert list(new) == ([expected] if expected else [])
    assert all(fix in text for text in new.values())


@pytest.mark.parametrize("method", ["medusa", "mlp_speculator"])
@pytest.mark.parametrize(("vllm", "gone"), [("0.32.0", False), ("0.33.0", True)])
def test_a_method_that_vllm_removed_is_an_error(vllm: str, gone: bool, method: str) -> None:
    case = catalog_case("tiny", vllm=vllm, image=OWN_IMAGE)
    assert case.drafter is not None
    removed = case.drafter.model_copy(update={"method": method})
    codes = {code for code, _ in fixes(replace(case, drafter=removed))}
    assert ("speculative-setting" in codes) is gone


@pytest.mark.parametrize("name", ["TENSOR_PARALLEL_SIZE", "tensor_parallel_size"])
def test_a_size_given_as_a_variable_is_checked_like_the_option(name: str) -> None:
    case = catalog_case("gpt-oss-20b", environment={f"SM_VLLM_{name}": "8"})
    assert case.tensor_parallel_size == 8


@pytest.mark.parametrize(("model", "method"), [
    ("amazon/gpt-oss-20b-p-eagle-long-context", "eagle"), ("amazon/GPT-OSS-20B-P-EAGLE",
     "draft_model"), ("/opt/ml/model/drafter", "draft_model"), ("a/Llama-EAGLE3", "eagle3"),
    ("z-lab/gpt-oss-DFlash", "dflash"), ("a/dspark_8b", "dspark"), ("[ngram]", "ngram"),
])  # fmt: skip
def test_without_a_method_vllm_infers_it_from_the_name(model: str, method: str) -> None:
    assert inferred_method(model) == method


def test_an_alias_is_the_same_setting() -> None:
    assert parse_settings(["device-memory-utilization=0.8"]) == {"gpu-memory-utilization": "0.8"}
    settings = settings_in({"SM_VLLM_DEVICE_MEMORY_UTILIZATION": "0.8"})
    assert settings == {"gpu-memory-utilization": 0.8}


def test_a_version_without_a_table_has_that_of_the_one_before() -> None:
    assert (find_facts("0.29.1").version, find_facts("0.29.1").exact) == ("0.29.0", True)
    assert (find_facts("0.34.0").version, find_facts("0.34.0").exact) == ("0.33.0", False)
    assert (find_facts("0.26.0").version, find_facts("0.26.0").exact) == ("0.28.0", False)
