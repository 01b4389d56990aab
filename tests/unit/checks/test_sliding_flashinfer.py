"""Which caches and backends lead sliding layers to FlashInfer, as vLLM on an H200 showed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.checks.cases import catalog_case
from toolkit.checks.rules.sliding_flashinfer import check

HOPPER, ADA = "ml.p5.48xlarge", "ml.g6e.12xlarge"
SMALL = {"kv-cache-dtype": "fp8"}


@pytest.mark.parametrize(
    ("pair", "instance", "settings", "where"),
    [
        ("gemma-4-31b", HOPPER, SMALL, "--kv-cache-dtype"),
        ("gemma-4-31b", HOPPER, {"kv-cache-dtype": "fp8_e4m3"}, "--kv-cache-dtype"),
        ("gpt-oss-20b", HOPPER, {"attention-backend": "flashinfer"}, "--attention-backend"),
        ("gemma-4-31b", HOPPER, {}, None),
        ("gemma-4-31b", HOPPER, SMALL | {"attention-backend": "TRITON_ATTN"}, None),
        ("gemma-4-31b", ADA, SMALL, None),
        ("gemma-4-31b", None, SMALL, None),
        ("gpt-oss-20b", HOPPER, SMALL, None),
        ("qwen3-coder-30b", HOPPER, {"attention-backend": "FLASHINFER"}, None),
    ],
)
def test_only_what_ends_on_flashinfer_is_refused(
    pair: str, instance: str | None, settings: dict[str, Any], where: str | None
) -> None:
    """GPT-OSS with an 8-bit cache ran on FlashAttention 3; Qwen3-Coder has no sliding layers."""
    found = list(check(catalog_case(pair, instance_type=instance, settings=settings)))
    assert [finding.message.split(":")[0] for finding in found] == ([where] if where else [])


def test_older_vllm_does_not_refuse_it() -> None:
    case = catalog_case("gemma-4-31b", instance_type=HOPPER, settings=SMALL, vllm="0.24.0")
    assert not list(check(case))
