"""A load format other than safetensors is an error wherever a plan can name it."""

from __future__ import annotations

from typing import Any

import pytest

from peagle.checks.rules.settings import code_variable, weights_format
from tests.unit.checks.cases import catalog_case


@pytest.mark.parametrize(
    "changes",
    [
        {"settings": {"load-format": "pt"}},
        {"environment": {"SM_VLLM_load_format": "pt"}},
        {"environment": {"SM_VLLM_LOAD_FORM": "npcache"}},
        {"speculative_settings": {"draft_load_config": {"load_format": "pt"}}},
        {"environment": {"SM_VLLM_X": '{"a": [{"load\\u005fformat": "hf"}]}'}},
    ],
)
def test_pickles_are_found(changes: dict[str, Any]) -> None:
    findings = list(weights_format.check(catalog_case("tiny", **changes)))

    assert [(item.code, item.level) for item in findings] == [("weights-format", "error")]


def test_safetensors_may_be_named() -> None:
    nested = {"draft_load_config": {"load_format": "safetensors"}}

    assert not list(weights_format.check(catalog_case("tiny", speculative_settings=nested)))


def test_a_file_of_arguments_is_an_error() -> None:
    case = catalog_case("tiny", environment={"SM_VLLM_config": "/opt/ml/model/a.yaml"})

    assert {item.level for item in code_variable.check(case)} == {"error"}
