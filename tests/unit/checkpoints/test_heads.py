"""What the toolkit asks of a draft head and of a tokenizer, beside what the container reads."""

from typing import Any

import pytest

from peagle.checkpoints.entries import drafter_from_checkpoint
from peagle.checkpoints.heads import Head, read_attention, read_head, trained_k, weight_bytes
from peagle.checkpoints.models import Checkpoint, Tensor, Tokenizer, reserved_tokens, s3_prefix
from peagle.errors import CheckpointError
from tests.support import raises_code

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "vocab_size": 1000,
}
SPECULATORS = {
    "speculators_model_type": "peagle",
    "transformer_layer_config": CONFIG,
    "speculators_config": {"proposal_methods": [{"speculative_tokens": 7}]},
}
MATRICES = 3 * 64 * 64 + 1000 * 64 + 2 * 64 * 64 + 2 * 64 * 64 + 3 * 64 * 128 + 64 * 64


def proposing(tokens: Any) -> dict[str, Any]:
    return SPECULATORS | {"speculators_config": {"proposal_methods": [tokens]}}


@pytest.mark.parametrize(("config", "k"), [
    (SPECULATORS, 7),
    (CONFIG, None),
    (SPECULATORS | {"speculators_model_type": "eagle3"}, None),
    (SPECULATORS | {"speculators_config": {"proposal_methods": []}}, None),
    (SPECULATORS | {"speculators_config": None}, None),
    (proposing({"speculative_tokens": 1}), 1),
    (proposing({"speculative_tokens": 0}), None),
    (proposing({"speculative_tokens": True}), None),
    (proposing(7), None),
])  # fmt: skip
def test_the_k_that_it_was_trained_for(config: dict[str, Any], k: int | None) -> None:
    assert trained_k(config) == k


@pytest.mark.parametrize(("more", "parameters"), [
    ({}, MATRICES + 1000 * 64),
    ({"draft_vocab_size": 100}, MATRICES + 100 * 64),
    ({"target_hidden_size": 32}, MATRICES + 1000 * 64 - 3 * 32 * 64),
    ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1]}},
     MATRICES + 1000 * 64 - 2 * 64 * 64),
    ({"hidden_size": None}, None),
    ({"intermediate_size": None}, None),
    ({"vocab_size": None}, None),
    ({"num_hidden_layers": None}, None),
])  # fmt: skip
def test_its_bytes_by_its_config(more: dict[str, Any], parameters: int | None) -> None:
    size = weight_bytes(read_head(CONFIG | more))
    assert size == (None if parameters is None else 2 * parameters)


@pytest.mark.parametrize(("more", "count"), [
    ({}, 1), ({"num_hidden_layers": None}, 0), ({"num_attention_heads": None}, 0),
])  # fmt: skip
def test_its_attention_is_known_with_all_of_its_sizes(more: dict[str, Any], count: int) -> None:
    assert len(read_attention(read_head(CONFIG | more))) == count


def test_its_tensors_are_named() -> None:
    tensors = {"model.mask_hidden": Tensor("BF16", (1, 64), 128)}
    head = Head(Checkpoint("x", CONFIG, tensors))
    assert (head.has_mask, head.named("hidden"), head.named("fc")) == (
        True, "model.mask_hidden", None,
    )  # fmt: skip
    assert (head.shape("model.mask_hidden"), head.shape("mask_hidden")) == ((1, 64), None)
    assert Head(Checkpoint("x", CONFIG, {"fc": Tensor("BF16", (1,), 2)})).has_mask is False
    assert Head(Checkpoint("x", CONFIG)).has_mask is None


@pytest.mark.parametrize(("config", "kind"), [(SPECULATORS, "speculators"), (CONFIG, "vllm")])
def test_its_entry_names_its_layout(config: dict[str, Any], kind: str) -> None:
    drafter = drafter_from_checkpoint(Checkpoint("org/head@v1", config))
    assert (drafter.format, drafter.weights, drafter.revision) == (kind, "org/head", "v1")
    assert drafter.parallel_drafting is (kind == "speculators")


def test_reserved_tokens_are_those_of_all_files() -> None:
    tokenizer = Tokenizer(
        special_tokens={"7": "<end>", "8": "<other>", "x": "<end>"},
        roles={"eos": "<end>"},
        generation={"eos_token_id": [3, 4], "pad_token_id": True},
    )
    config = {"eos_token_id": 1, "text_config": {"eos_token_id": 2, "unk_token_id": 0}}
    read = Checkpoint("x", config, tokenizer=tokenizer)
    assert reserved_tokens(read) == {"eos": {1, 2, 3, 4, 7}, "pad": set(), "unk": {0}}
    assert reserved_tokens(Checkpoint("x", {"text_config": 1}))["eos"] == set()


@pytest.mark.parametrize(("ours", "theirs", "differs"), [
    (Tokenizer(), Tokenizer(), False),
    (Tokenizer(10), Tokenizer(), False),
    (Tokenizer(10), Tokenizer(10), False),
    (Tokenizer(10), Tokenizer(11), True),
    (Tokenizer(special_tokens={"1": "a"}), Tokenizer(special_tokens={"1": "a"}), False),
    (Tokenizer(special_tokens={"1": "a"}), Tokenizer(special_tokens={"2": "a"}), False),
    (Tokenizer(special_tokens={"1": "a"}), Tokenizer(special_tokens={"1": "b"}), True),
])  # fmt: skip
def test_tokenizers_differ_in_size_or_in_a_token(
    ours: Tokenizer, theirs: Tokenizer, differs: bool
) -> None:
    assert ours.differs_from(theirs) is differs


@pytest.mark.parametrize("location", ["org/name", "s3://", "s3://UPPER/x", "/folder"])
def test_other_locations_are_no_prefix_in_s3(location: str) -> None:
    with raises_code("invalid-s3-uri", CheckpointError):
        s3_prefix(location)
    assert str(s3_prefix("s3://a-bucket/models")).rstrip("/") == "s3://a-bucket/models"
