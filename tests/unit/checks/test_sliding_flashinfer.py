"""Caches and backends with which vLLM runs sliding layers on FlashInfer, as on an H200."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from peagle.catalog import load_catalog
from peagle.checks.rules.version import fp8_cache_triton, sliding_flashinfer
from tests.unit.checks.cases import catalog_case

HOPPER, ADA = "ml.p5.48xlarge", "ml.g6e.12xlarge"
SMALL = {"kv-cache-dtype": "fp8"}


@pytest.mark.parametrize(
    ("pair", "instance", "settings", "where"),
    [
        ("gemma-4-31b", HOPPER, SMALL, "--kv-cache-dtype"),
        ("gemma-4-31b", HOPPER, {"kv-cache-dtype": "fp8_e4m3"}, "--kv-cache-dtype"),
        ("gpt-oss-20b", HOPPER, {"attention-backend": "flashinfer"}, "--attention-backend"),
        ("gemma-4-31b", HOPPER, {"kv-cache-dtype": "fp8_e5m2"}, "--kv-cache-dtype"),
        ("gemma-4-31b", HOPPER, {}, None),
        ("gemma-4-31b", HOPPER, {"kv-cache-dtype": "fp8_per_token_head"}, None),
        ("gemma-4-31b", HOPPER, SMALL | {"attention-backend": "TRITON_ATTN"}, None),
        ("gemma-4-31b", ADA, SMALL, None),
        ("gemma-4-31b", None, SMALL, None),
        ("gpt-oss-20b", HOPPER, SMALL, None),
        ("gpt-oss-20b", HOPPER, {"kv-cache-dtype": "fp8_e5m2"}, None),
        ("qwen3-coder-30b", HOPPER, {"attention-backend": "FLASHINFER"}, None),
    ],
)
def test_only_cases_on_flashinfer_are_refused(
    pair: str, instance: str | None, settings: dict[str, Any], where: str | None
) -> None:
    """GPT-OSS with an 8-bit cache ran on FlashAttention 3; Qwen3-Coder has no sliding layers."""
    found = list(
        sliding_flashinfer.check(catalog_case(pair, instance_type=instance, settings=settings))
    )
    assert [finding.message.split(":")[0] for finding in found] == ([where] if where else [])


def test_older_vllm_does_not_refuse_it() -> None:
    case = catalog_case("gemma-4-31b", instance_type=HOPPER, settings=SMALL, vllm="0.24.0")
    assert not list(sliding_flashinfer.check(case))


def test_a_narrow_head_runs_on_flashinfer_with_e5m2_only() -> None:
    """FlashAttention 3 supports fp8_e4m3 for heads of size 128, and never e5m2."""
    case = catalog_case("gemma-4-31b", instance_type=HOPPER, settings=SMALL)
    groups = tuple(
        group.model_copy(update={"head_dim": 128}) for group in case.target.architecture.attention
    )
    shape = case.target.architecture.model_copy(update={"attention": groups})
    narrow = replace(case, target=case.target.model_copy(update={"architecture": shape}))
    assert not list(sliding_flashinfer.check(narrow))
    assert list(sliding_flashinfer.check(replace(narrow, settings={"kv-cache-dtype": "fp8_e5m2"})))


@pytest.mark.parametrize("pair", ["gpt-oss-20b", "gemma-4-31b"])
def test_no_rule_refuses_the_gpus_that_the_fix_names(pair: str) -> None:
    instances = load_catalog().instances.instances
    named = [i for i in instances if i.gpu in ("L4", "L40S") or int(i.gpu_architecture[3:]) >= 100]
    assert {i.gpu_architecture for i in named} >= {"sm_89", "sm_100", "sm_120"}
    for instance in named:
        case = catalog_case(pair, instance_type=instance.type, settings=SMALL)
        assert not [*sliding_flashinfer.check(case), *fp8_cache_triton.check(case)], instance.type
