"""P-EAGLE heads with small layers, which vLLM runs with a matrix-only kernel on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from peagle.checks import Case, check
from tests.unit.checks.cases import catalog_case, geometry_case, tiny_case

CODE = "amx-small-layers"


def found(case: Case) -> list[str]:
    return [finding.message for finding in check(case) if finding.code == CODE]


@pytest.mark.parametrize("settings", [{}, {"dtype": "auto"}, {"dtype": "bfloat16"}])
def test_a_small_head_in_bfloat16_is_reported_with_the_source(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    (message,) = found(tiny_case(tmp_path, on_cpu=True, settings=settings))

    assert message.startswith("P-EAGLE in bfloat16 on a CPU: ")
    assert "check_cpu_sgl_kernel" in message


def test_without_checkpoints_the_catalogues_sizes_count() -> None:
    assert found(catalog_case("tiny", on_cpu=True))


@pytest.mark.parametrize(
    "more",
    [
        {"on_cpu": False},
        {"on_cpu": True, "settings": {"dtype": "float32"}},
        {"on_cpu": True, "vllm": "0.27.1"},
        {"on_cpu": True, "head": "eagle3", "pair": "tiny+eagle3"},
    ],
    ids=["a GPU", "float32", "an older vLLM", "EAGLE-3"],
)
def test_other_cases_are_not_reported(more: dict[str, Any], tmp_path: Path) -> None:
    assert found(tiny_case(tmp_path, **more)) == []


def test_a_head_of_a_real_size_is_not_reported(tmp_path: Path) -> None:
    assert found(geometry_case(tmp_path, "gpt-oss-20b", on_cpu=True)) == []
