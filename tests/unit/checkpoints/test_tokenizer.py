"""Comparing two tokenizers without downloading them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from peagle.checkpoints.reading import describe_tokenizer, same_tokenizer

BPE = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}},
       "added_tokens": [{"id": 2, "content": "<end>"}]}  # fmt: skip
UNIGRAM = {"model": {"type": "Unigram", "vocab": [["a", 0.0], ["b", -1.0]]}}
SETTINGS = {"tokenizer_class": "Fast", "added_tokens_decoder": {"2": {"content": "<end>"}}}


def described(**contents: object) -> dict[str, Any]:
    files = {f"{name}.json": json.dumps(value).encode() for name, value in contents.items()}
    return describe_tokenizer({name: len(text) for name, text in files.items()}, {}, files)


@pytest.mark.parametrize(("vocabulary", "size"), [(BPE, 3), (UNIGRAM, 2)])
def test_a_small_vocabulary_is_counted(vocabulary: dict[str, Any], size: int) -> None:
    assert described(tokenizer=vocabulary)["vocab_size"] == size


def test_settings_have_class_and_special_tokens() -> None:
    found = described(tokenizer_config=SETTINGS)
    assert found["class"] == "Fast"
    assert found["special_tokens"] == {"2": "<end>"}
    assert found["tokenizer_config.json"] == len(json.dumps(SETTINGS))
    assert "vocab_size" not in found


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"[]", b'{"model": 1}', b'{"model": {"vocab": {"a": "b"}}}',
                b'{"added_tokens": [1, {"id": "x"}]}', b"[" * 100_000]
)  # fmt: skip
def test_unreadable_files_are_ignored(content: bytes) -> None:
    files = {"tokenizer.json": content, "tokenizer_config.json": content}
    assert describe_tokenizer({"tokenizer.json": 7}, {}, files) == {"tokenizer.json": 7}


def digest(**known: str) -> dict[str, Any]:
    return {"digests": {"tokenizer.json": known}}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({}, {}, None),
        (digest(md5="1", sha256="2"), digest(sha256="2"), True),
        (digest(md5="1"), digest(sha256="2"), None),
        (digest(md5="1"), digest(md5="2"), None),
        ({"special_tokens": {"2": "<end>"}}, {"special_tokens": {"2": "<end>"}}, None),
        ({"special_tokens": {"2": "<end>"}}, {"special_tokens": {"2": "<pad>"}}, False),
        ({"special_tokens": {"2": "<end>"}}, {"special_tokens": {"3": "<pad>"}}, None),
        ({"vocab_size": 8}, {"vocab_size": 9}, False),
        ({"vocab_size": 8}, {"vocab_size": 8}, None),
        ({"vocab_size": 8}, {}, None),
    ],
)
def test_two_tokenizers_are_equal_different_or_unknown(
    one: dict[str, Any], other: dict[str, Any], same: bool | None
) -> None:
    assert same_tokenizer(one, other) is same
    assert same_tokenizer(other, one) is same
