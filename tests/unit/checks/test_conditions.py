"""When a rule reports and when not: the cases beside those of the corpus."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from peagle.catalog import load_catalog
from peagle.checks import check
from peagle.checks.rules.version import fp8_cache_triton, sliding_flashinfer
from tests.unit.checks.cases import catalog_case
from tests.unit.checks.corpus_rest import block_fp8

A10G, A100, L40S, HOPPER = "ml.g5.12xlarge", "ml.p4de.24xlarge", "ml.g6e.12xlarge", "ml.p5.48xlarge"
GEMMA, GPT, QWEN = "gemma-4-31b", "gpt-oss-20b", "qwen3-coder-30b"
KIND, BACKEND = "kv-cache-dtype", "attention-backend"
SMALL = {KIND: "fp8"}
TRITON, SLIDING = "fp8-cache-triton", "sliding-flashinfer"
ESCAPED = '{"a": [{"load\\u005fformat": "hf"}]}'
NESTED = {"draft_load_config": {"load_format": "pt"}}
AMX, FORMAT = "amx-small-layers", "weights-format"


def on(instance: str | None, settings: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"instance_type": instance, "settings": settings, **more}


@pytest.mark.parametrize(
    ("code", "pair", "options", "is_reported"),
    [
        # FlashInfer supports Qwen3-Coder; GPT-OSS has sinks and Gemma-4 heads of two sizes.
        (TRITON, GPT, on(A10G, SMALL), True),
        (TRITON, GPT, on(A100, {KIND: "fp8_e4m3"}), True),
        (TRITON, GPT, on(A100, {KIND: "fp8_e5m2"}), True),
        (TRITON, GEMMA, on(A100, SMALL), True),
        (TRITON, QWEN, on(A100, SMALL | {BACKEND: "triton_attn"}), True),
        (TRITON, QWEN, on(A100, {KIND: "fp8_per_token_head"}), True),
        (TRITON, QWEN, on(A100, SMALL), False),
        (TRITON, GEMMA, on(A100, SMALL | {BACKEND: "FLASHINFER"}), False),
        (TRITON, GPT, on(A100, {KIND: "bfloat16"}), False),
        (TRITON, GPT, on(A100, {}), False),
        (TRITON, GPT, on(L40S, SMALL), False),
        (TRITON, GPT, on(HOPPER, SMALL), False),
        (TRITON, GPT, on(None, SMALL), False),
        # GPT-OSS with an 8-bit cache ran on FlashAttention 3; Qwen3-Coder has no sliding layers.
        (SLIDING, GEMMA, on(HOPPER, SMALL), True),
        (SLIDING, GEMMA, on(HOPPER, {KIND: "fp8_e4m3"}), True),
        (SLIDING, GEMMA, on(HOPPER, {KIND: "fp8_e5m2"}), True),
        (SLIDING, GPT, on(HOPPER, {BACKEND: "flashinfer"}), True),
        (SLIDING, GEMMA, on(HOPPER, {}), False),
        (SLIDING, GEMMA, on(HOPPER, {KIND: "fp8_per_token_head"}), False),
        (SLIDING, GEMMA, on(HOPPER, SMALL | {BACKEND: "TRITON_ATTN"}), False),
        (SLIDING, GEMMA, on(HOPPER, SMALL, vllm="0.24.0"), False),
        (SLIDING, GEMMA, on(L40S, SMALL), False),
        (SLIDING, GEMMA, on(None, SMALL), False),
        (SLIDING, GPT, on(HOPPER, SMALL), False),
        (SLIDING, GPT, on(HOPPER, {KIND: "fp8_e5m2"}), False),
        (SLIDING, QWEN, on(HOPPER, {BACKEND: "FLASHINFER"}), False),
        (AMX, "tiny", {"on_cpu": True}, True),
        (AMX, "tiny", {"on_cpu": True, "settings": {"dtype": "auto"}}, True),
        (AMX, "tiny", {"on_cpu": True, "settings": {"dtype": "float32"}}, False),
        (AMX, "tiny", {"on_cpu": True, "vllm": "0.27.1"}, False),
        (AMX, "tiny", {"on_cpu": False}, False),
        (AMX, "tiny+eagle3", {"on_cpu": True}, False),
        (AMX, GPT, {"on_cpu": True}, False),
        (FORMAT, "tiny", {"settings": {"load-format": "pt"}}, True),
        (FORMAT, "tiny", {"environment": {"SM_VLLM_load_format": "pt"}}, True),
        (FORMAT, "tiny", {"environment": {"SM_VLLM_LOAD_FORM": "npcache"}}, True),
        (FORMAT, "tiny", {"environment": {"SM_VLLM_X": ESCAPED}}, True),
        (FORMAT, "tiny", {"speculative_settings": NESTED}, True),
        (FORMAT, "tiny", {"settings": {"load-format": "safetensors"}}, False),
        ("code-variable", "tiny", {"environment": {"SM_VLLM_config": "/opt/ml/a.yaml"}}, True),
    ],
)  # fmt: skip
def test_a_rule_reports_its_cases_only(
    code: str, pair: str, options: dict[str, Any], is_reported: bool
) -> None:
    assert bool(check(catalog_case(pair, **options), only={code})) is is_reported


def test_a_narrow_head_runs_on_flashinfer_with_e5m2_only() -> None:
    """FlashAttention 3 supports fp8_e4m3 for heads of size 128, and never e5m2."""
    case = catalog_case(GEMMA, **on(HOPPER, SMALL))
    groups = tuple(
        group.model_copy(update={"head_dim": 128}) for group in case.target.architecture.attention
    )
    shape = case.target.architecture.model_copy(update={"attention": groups})
    narrow = replace(case, target=case.target.model_copy(update={"architecture": shape}))
    assert not list(sliding_flashinfer.check(narrow))
    assert list(sliding_flashinfer.check(replace(narrow, settings={KIND: "fp8_e5m2"})))


@pytest.mark.parametrize("pair", [GPT, GEMMA])
def test_no_rule_refuses_the_gpus_that_the_fix_names(pair: str) -> None:
    instances = load_catalog().instances.instances
    named = [i for i in instances if i.gpu in ("L4", "L40S") or int(i.gpu_architecture[3:]) >= 100]
    assert {i.gpu_architecture for i in named} >= {"sm_89", "sm_100", "sm_120"}
    for instance in named:
        case = catalog_case(pair, **on(instance.type, SMALL))
        assert not [*sliding_flashinfer.check(case), *fp8_cache_triton.check(case)], instance.type


@pytest.mark.parametrize(
    ("size", "settings", "levels"),
    [
        (8, {}, ["error"]),
        (4, {}, ["note"]),
        (8, {"enable_expert_parallel": "true"}, []),
        (4, {"enable_expert_parallel": "true"}, []),
    ],
)
def test_the_fix_of_a_cut_block_names_sizes_and_whole_experts(
    size: int, settings: dict[str, str], levels: list[str]
) -> None:
    report = check(block_fp8(size, "ml.p5.48xlarge", **settings), only={"quantization-block"})
    assert [finding.level for finding in report] == levels
    for finding in report:
        assert "1, 2, 4" in finding.fix
        assert "--set enable-expert-parallel=true" in finding.fix
