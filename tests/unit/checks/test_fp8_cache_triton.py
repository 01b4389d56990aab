"""Caches and backends with which vLLM uses Triton on a GPU without FP8, as in its source."""

from __future__ import annotations

from typing import Any

import pytest

from peagle.checks.rules.version import fp8_cache_triton
from tests.unit.checks.cases import catalog_case

A10G, A100, L40S, HOPPER = "ml.g5.12xlarge", "ml.p4de.24xlarge", "ml.g6e.12xlarge", "ml.p5.48xlarge"
SMALL = {"kv-cache-dtype": "fp8"}


@pytest.mark.parametrize(
    ("pair", "instance", "settings", "refused"),
    [
        ("gpt-oss-20b", A10G, SMALL, True),
        ("gpt-oss-20b", A100, {"kv-cache-dtype": "fp8_e4m3"}, True),
        ("gpt-oss-20b", A100, {"kv-cache-dtype": "fp8_e5m2"}, True),
        ("gemma-4-31b", A100, SMALL, True),
        ("qwen3-coder-30b", A100, SMALL | {"attention-backend": "triton_attn"}, True),
        ("qwen3-coder-30b", A100, {"kv-cache-dtype": "fp8_per_token_head"}, True),
        ("qwen3-coder-30b", A100, SMALL, False),
        ("gemma-4-31b", A100, SMALL | {"attention-backend": "FLASHINFER"}, False),
        ("gpt-oss-20b", A100, {"kv-cache-dtype": "bfloat16"}, False),
        ("gpt-oss-20b", A100, {}, False),
        ("gpt-oss-20b", L40S, SMALL, False),
        ("gpt-oss-20b", HOPPER, SMALL, False),
        ("gpt-oss-20b", None, SMALL, False),
    ],
)
def test_only_cases_on_triton_before_ada_are_refused(
    pair: str, instance: str | None, settings: dict[str, Any], refused: bool
) -> None:
    """FlashInfer supports Qwen3-Coder; GPT-OSS has sinks and Gemma-4 heads of two sizes."""
    found = list(
        fp8_cache_triton.check(catalog_case(pair, instance_type=instance, settings=settings))
    )
    assert bool(found) == refused
    for finding in found:
        assert finding.level == "error"
        assert f"--kv-cache-dtype {settings['kv-cache-dtype']} on A1" in finding.message
        assert "omit --kv-cache-dtype" in (finding.fix or "")
