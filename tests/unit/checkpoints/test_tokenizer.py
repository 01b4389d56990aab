"""Comparing two tokenizers by their small files."""

import json

import pytest

from peagle.checkpoints.models import Tokenizer
from peagle.checkpoints.reading import describe_tokenizer

BPE = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}},
       "added_tokens": [{"id": 2, "content": "<end>"}]}  # fmt: skip
UNIGRAM = {"model": {"type": "Unigram", "vocab": [["a", 0.0], ["b", -1.0]]}}
SETTINGS = {"added_tokens_decoder": {"2": {"content": "<end>"}}, "eos_token": {"content": "<end>"},
            "pad_token": "<pad>", "chat_template": "{{ x }}"}  # fmt: skip
SPECIAL = Tokenizer(special_tokens={"2": "<end>"})


@pytest.mark.parametrize(("files", "tokenizer"), [
    ({"tokenizer": BPE}, Tokenizer(3, {"2": "<end>"})),
    ({"tokenizer": UNIGRAM}, Tokenizer(2)),
    ({"tokenizer_config": SETTINGS},
     Tokenizer(None, {"2": "<end>"}, {"eos": "<end>", "pad": "<pad>"}, {}, True)),
    ({"generation_config": {"eos_token_id": 2}}, Tokenizer(generation={"eos_token_id": 2})),
])  # fmt: skip
def test_a_tokenizer_is_described(files: dict[str, object], tokenizer: Tokenizer) -> None:
    contents = {f"{name}.json": json.dumps(value).encode() for name, value in files.items()}
    assert describe_tokenizer(contents) == tokenizer


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"[]", b'{"model": 1}', b'{"model": {"vocab": {"a": "b"}}}',
                b'{"added_tokens": [1, {"id": "x"}]}', b"[" * 100_000]
)  # fmt: skip
def test_unreadable_files_are_ignored(content: bytes) -> None:
    files = {"tokenizer.json": content, "tokenizer_config.json": content}
    assert describe_tokenizer(files) == Tokenizer()


@pytest.mark.parametrize(("tokenizer", "other", "differ"), [
    (Tokenizer(), Tokenizer(), False),
    (SPECIAL, SPECIAL, False),
    (SPECIAL, Tokenizer(special_tokens={"2": "<pad>"}), True),
    (SPECIAL, Tokenizer(special_tokens={"3": "<pad>"}), False),
    (Tokenizer(8), Tokenizer(9), True),
    (Tokenizer(8), Tokenizer(8), False),
    (Tokenizer(8), Tokenizer(), False),
])  # fmt: skip
def test_two_tokenizers_differ_or_may_be_equal(
    tokenizer: Tokenizer, other: Tokenizer, differ: bool
) -> None:
    assert tokenizer.differs_from(other) is other.differs_from(tokenizer) is differ
