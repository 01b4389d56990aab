"""Entries for models that the catalogue does not have."""

from dataclasses import replace
from math import prod
from typing import Any

import pytest

from peagle.checkpoints import Checkpoint, FolderSource, Tensor, read_checkpoint
from peagle.checkpoints.entries import count_parameters, parse_identity, target_from_checkpoint
from tests.unit.checks.damage import tiny

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def tensor(dtype: str, *shape: int) -> Tensor:
    return Tensor(dtype, shape, 2 * prod(shape))


@pytest.mark.parametrize(("location", "target_id", "revision"), [
    ("Qwen/Qwen3-4B", "Qwen/Qwen3-4B", None),
    ("Qwen/Qwen3-4B@v1", "Qwen/Qwen3-4B", "v1"),
    ("/models/My Model (1)", "own/My-Model-1", None),
    ("s3://bucket/models/chat-7b/", "own/chat-7b", None),
    ("/", "own/model", None),
    (f"/hf/hub/models--Qwen--Qwen3-4B/snapshots/{COMMIT}", "Qwen/Qwen3-4B", COMMIT),
])  # fmt: skip
def test_a_model_is_named_after_its_location(
    location: str, target_id: str, revision: str | None
) -> None:
    assert parse_identity(location) == (target_id, revision)


@pytest.mark.parametrize(("config", "tensors", "parameters"), [
    ({}, {"w": tensor("BF16", 4, 8), "norm": tensor("BF16", 4)}, 36),
    ({"quantization_config": {"quant_method": "mxfp4"}},
     {"experts_blocks": tensor("U8", 4, 16), "experts_scales": tensor("U8", 4, 1)}, 128),
    ({"quantization_config": {"quant_method": "awq", "bits": 4}},
     {"qweight": tensor("I32", 4, 8), "qzeros": tensor("I32", 1, 8)}, 256),
    ({}, {}, None),
])  # fmt: skip
def test_parameters_are_counted_from_the_headers(
    config: dict[str, Any], tensors: dict[str, Tensor], parameters: int | None
) -> None:
    assert count_parameters(Checkpoint("x", config, tensors or None)) == parameters


def test_without_a_chat_template_the_proof_is_a_completion() -> None:
    read = read_checkpoint(FolderSource(tiny("target")))
    assert not target_from_checkpoint(replace(read, tokenizer=None)).proof.chat
