"""What a plan may do where vLLM refuses a tensor-parallel size for its blocks."""

from __future__ import annotations

import pytest

from peagle import checks
from tests.unit.checks.corpus_rest import block_fp8

CODE = "quantization-block"


@pytest.mark.parametrize(
    ("size", "settings", "levels"),
    [
        (8, {}, ["error"]),
        (4, {}, ["note"]),
        (8, {"enable_expert_parallel": "true"}, []),
        (4, {"enable_expert_parallel": "true"}, []),
    ],
)
def test_the_fix_names_sizes_and_whole_experts(
    size: int, settings: dict[str, str], levels: list[str]
) -> None:
    found = checks.check(block_fp8(size, "ml.p5.48xlarge", **settings), only={CODE})
    assert [finding.level for finding in found] == levels
    for finding in found:
        assert "1, 2, 4" in finding.fix
        assert "--set enable-expert-parallel=true" in finding.fix
