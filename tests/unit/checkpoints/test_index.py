"""Which files vLLM loads, and the index of a sharded checkpoint."""

from __future__ import annotations

import pytest

from peagle_serve.checkpoint import (
    DamagedFile,
    parse_index,
    weight_files,
)
from tests.unit.checkpoints.files import index_of

INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("names", "index", "expected"),
    [
        (["config.json", "model.safetensors"], None, ["model.safetensors"]),
        (["config.json", "pytorch_model.bin"], None, []),
        (["b.safetensors", "a.safetensors"], None, ["a.safetensors", "b.safetensors"]),
        (["._model.safetensors", "model.safetensors"], None, ["model.safetensors"]),
        (["model.SAFETENSORS", "model.safetensors.tmp"], None, []),
        # The single file beside the shards is not loaded a second time.
        (["model.safetensors", "s1.safetensors"], {"a": "s1.safetensors"}, ["s1.safetensors"]),
        # Of Mistral's two formats vLLM loads its own.
        (
            ["consolidated.safetensors", "model.safetensors", INDEX],
            None,
            ["consolidated.safetensors"],
        ),
    ],
)
def test_the_files_are_those_that_vllm_loads(
    names: list[str], index: dict[str, str] | None, expected: list[str]
) -> None:
    assert list(weight_files(names, index)) == expected


def test_missing_shards_are_listed() -> None:
    index = {f"t{n}": f"s{n}.safetensors" for n in range(8)}
    with pytest.raises(DamagedFile) as refused:
        weight_files(["s0.safetensors"], index)
    assert refused.value.message == (
        "s1.safetensors, s2.safetensors, s3.safetensors, "
        "s4.safetensors, s5.safetensors, and 2 more are missing"
    )


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is not valid JSON"),
        (b"\xff", "is not UTF-8 (invalid byte at offset 0)"),
        (b"[" * 100_000, "cannot be read"),
        (b"[]", "has no weight_map"),
        (b"{}", "has no weight_map"),
        (b'{"weight_map": {}}', "has no weight_map"),
        (b'{"weight_map": {"a": 1}}', "names no file for 'a'"),
        (b'{"weight_map": {"a": ""}}', "names no file for 'a'"),
        (index_of(a="../x.safetensors"), "'../x.safetensors', which is not in the same folder"),
        (index_of(a="/etc/x.safetensors"), "not in the same folder"),
        (index_of(a="sub/x.safetensors"), "not in the same folder"),
        (index_of(a=".."), "not in the same folder"),
    ],
)
def test_an_invalid_index_is_refused(content: bytes, text: str) -> None:
    with pytest.raises(DamagedFile) as refused:
        parse_index(content, INDEX)
    assert refused.value.message.startswith(INDEX)
    assert text in refused.value.message


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        (["model-00001-of-00002.safetensors"], "model-00002-of-00002"),
        (
            ["model-00000-of-00003.safetensors", "model-00002-of-00003.safetensors"],
            "00001-of-00003",
        ),
        (["a-00001-of-00001.safetensors", "b-00002-of-00002.safetensors"], "b-00001-of-00002"),
    ],
)
def test_an_incomplete_set_without_an_index_is_refused(names: list[str], missing: str) -> None:
    with pytest.raises(DamagedFile) as refused:
        weight_files(names, None)
    assert missing in refused.value.message


@pytest.mark.parametrize("first", [0, 1])
def test_a_complete_set_without_an_index_is_loaded(first: int) -> None:
    names = [f"model-{number:05}-of-00002.safetensors" for number in (first, first + 1)]
    assert weight_files(names, None) == tuple(names)
