"""Which files vLLM loads, and the index of a sharded checkpoint."""

import json
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors import deserialize as deserialize_untyped

from peagle.checkpoints.architecture import division_problem, divisions, read_architecture
from peagle_serve.checkpoint import (
    LARGEST_HEADER,
    DamagedFile,
    header_bytes,
    parse_header,
    parse_index,
    weight_files,
)
from tests.unit.checkpoints import public_targets as public
from tests.unit.checkpoints.files import BITS, ONE, Shapes, file_of, index_of, weights

INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(("names", "index", "expected"), [
    (["config.json", "model.safetensors"], None, ["model.safetensors"]),
    (["config.json", "pytorch_model.bin"], None, []),
    (["b.safetensors", "a.safetensors"], None, ["a.safetensors", "b.safetensors"]),
    (["._model.safetensors", "model.safetensors"], None, ["model.safetensors"]),
    (["model.SAFETENSORS", "model.safetensors.tmp"], None, []),
    # The single file beside the shards is not loaded a second time.
    (["model.safetensors", "s1.safetensors"], {"a": "s1.safetensors"}, ["s1.safetensors"]),
    # Of Mistral's two formats vLLM loads its own.
    (["consolidated.safetensors", "model.safetensors", INDEX], None, ["consolidated.safetensors"]),
])  # fmt: skip
def test_the_files_are_those_that_vllm_loads(
    names: list[str], index: dict[str, str] | None, expected: list[str]
) -> None:
    assert list(weight_files(names, index)) == expected


@pytest.mark.parametrize(("content", "text"), [
    (b"", "is not valid JSON"),
    (b"\xff", "is not UTF-8"),
    (b"{}", "has no weight_map"),
    (b'{"weight_map": {}}', "has no weight_map"),
    (b'{"weight_map": {"a": 1}}', "names no file for 'a'"),
    (b'{"weight_map": {"a": ""}}', "names no file for 'a'"),
    (index_of(a="../x.safetensors"), "'../x.safetensors', which is not in the same folder"),
    (index_of(a=".."), "not in the same folder"),
    (index_of(a="."), "not in the same folder"),
    (index_of(a="x/y.safetensors"), "not in the same folder"),
    (index_of(a="x\\y.safetensors"), "not in the same folder"),
])  # fmt: skip
def test_an_invalid_index_is_refused(content: bytes, text: str) -> None:
    with pytest.raises(DamagedFile) as refused:
        parse_index(content, INDEX)
    assert refused.value.message.startswith(INDEX)
    assert text in refused.value.message


# The header of a safetensors file, compared with the library that vLLM uses.
deserialize: Callable[[bytes], list[tuple[str, dict[str, Any]]]] = deserialize_untyped
TENSOR = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
DTYPES = st.sampled_from(sorted(BITS))


# Eight elements of any dtype fill whole bytes.
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(lambda shape: (8, *shape))
TENSORS = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20).filter(
        lambda name: name != "__metadata__"
    ),
    st.tuples(DTYPES, SHAPES),
    max_size=8,
)


def refusal(content: bytes, size: int | None = None) -> str:
    with pytest.raises(DamagedFile) as refused:
        parse_header(content, len(content) if size is None else size, "model.safetensors")
    assert refused.value.message.startswith("model.safetensors")
    assert refused.value.fix
    assert len(refused.value.message) < 400
    assert refused.value.message.isprintable()
    return refused.value.message


def library_reads(content: bytes) -> bool:
    try:
        deserialize(content)
    except SafetensorError:
        return False
    return True


def header_of(**change: Any) -> bytes:
    text = json.dumps({"a": TENSOR | change}).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(("change", "is_valid"), [
    ({}, True),
    ({"shape": [2**64 - 1]}, True),
    ({"shape": [0]}, True),
    ({"shape": []}, True),
    ({"shape": [2**64]}, False),
    ({"shape": [-1]}, False),
    ({"shape": [True]}, False),
    ({"shape": None}, False),
    ({"dtype": 8}, False),
    ({"data_offsets": [0]}, False),
    ({"data_offsets": [0, 4, 4]}, False),
    ({"data_offsets": [4, 0]}, False),
    ({"data_offsets": [0.0, 4]}, False),
])  # fmt: skip
def test_an_entry_of_a_header_has_bounds(change: dict[str, Any], is_valid: bool) -> None:
    content = header_of(**change) + bytes(4)
    if is_valid:
        assert parse_header(content, len(content), "f")["a"].size == 4
    else:
        assert "its header does not describe 'a'" in refusal(content)


def test_an_empty_tensor_and_no_tensors_are_valid() -> None:
    empty = header_of(data_offsets=[0, 0])
    assert parse_header(empty, len(empty), "f")["a"].size == 0
    none = struct.pack("<Q", 2) + b"{}"
    assert parse_header(none, len(none), "f") == {}
    assert refusal(none + b"x") == refusal(none, len(none) + 1)
    assert "is damaged" in refusal(none + b"x")
    assert "is truncated" in refusal(header_of() + bytes(3))
    assert "is damaged" in refusal(header_of() + bytes(5))


@pytest.mark.thorough
@given(TENSORS)
@settings(deadline=None)
def test_a_header_is_read_as_the_library_reads_it(shapes: Shapes) -> None:
    content = weights(shapes)
    tensors = parse_header(content, len(content), "f")
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()} == dict(shapes)
    theirs = {name: (entry["shape"], len(entry["data"])) for name, entry in deserialize(content)}
    assert theirs == {name: (list(tensor.shape), tensor.size) for name, tensor in tensors.items()}


@given(st.integers(0, len(ONE) - 1))
def test_every_shortened_file_is_refused(size: int) -> None:
    assert "is truncated" in refusal(ONE[:size])
    assert not library_reads(ONE[:size])


@pytest.mark.parametrize(("header", "size", "text"), [
    ({"a": {**TENSOR, "data_offsets": [4, 0]}}, 4, "does not describe 'a'"),
    ({"a": 1}, 4, "does not describe 'a'"),
    ({"\x1b[2J\n": 1}, 0, r"'\x1b[2J\n'"),
    ({"n" * 500: 1}, 0, "nnn"),
    ([], 0, "its header is not a JSON object"),
    (b"", 0, "its header is not valid JSON"),
    (b"{", 0, "its header is not valid JSON"),
    (b'{"a": NaN}', 0, "NaN is no number of JSON"),
    (b"\xff\xfe{}", 0, "its header is not UTF-8"),
    (b'{"\\ud800": {"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', 4, "half of a surrogate"),
    (b"[" * 100_000, 0, "cannot be read"),
    (b'{"a": {"shape": [' + b"9" * 5000 + b"]}}", 0, "Exceeds the limit"),
])  # fmt: skip
def test_damage_is_reported(header: object, size: int, text: str) -> None:
    content = file_of(header, size)
    assert text in refusal(content)
    assert not library_reads(content)


def test_a_duplicate_name_is_refused_though_the_library_reads_the_last() -> None:
    entry = json.dumps(TENSOR)
    content = file_of(f'{{"a": {entry}, "a": {entry}}}'.encode(), 4)
    assert "'a' twice" in refusal(content)
    assert library_reads(content)


def test_a_header_of_100_mb_is_refused_after_its_first_bytes() -> None:
    head = struct.pack("<Q", 100_000_000) + b"{"
    message = refusal(head, size=200_000_000)
    assert "10,000,000" in message
    assert header_bytes(struct.pack("<Q", LARGEST_HEADER), 10**9, "f") == LARGEST_HEADER + 8


# Tensor-parallel sizes that vLLM refuses for the blocks of quantized weights.
def moe(hidden: int, width: int, layers: int, heads: int, experts: int = 128) -> dict[str, Any]:
    return public.config(
        "Qwen3MoeForCausalLM", "qwen3_moe", f"{hidden} 12288 {layers} {heads} 4 151936 262144",
        head_dim=128, moe_intermediate_size=width, num_experts=experts, num_experts_per_tok=8,
    )  # fmt: skip


def dense(width: int, **settings: Any) -> dict[str, Any]:
    return public.config(
        "Qwen3ForCausalLM", "qwen3", f"5120 {width} 64 64 8 151936 40960", head_dim=128,
        quantization_config=settings,
    )  # fmt: skip


FP8 = {"quantization_config": public.BLOCK_FP8}
COMPRESSED = {
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "config_groups": {
            "g": {"weights": {"type": "float", "num_bits": 8, "block_structure": [128, 128]}}
        },
    }
}
INT4, HALVED = (
    {
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "config_groups": {
                "g": {"weights": {"type": "int", "num_bits": 4, "group_size": 128, **order}}
            },
        }
    }
    for order in ({}, {"actorder": "group"})
)
AWQ = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
QWEN_30B = moe(2048, 768, 48, 32)


@pytest.mark.parametrize(("config", "sizes", "with_whole_experts"), [
    (public.QWEN3_235B_FP8, [1, 2, 4], [1, 2, 4, 8]),
    (public.QWEN3_235B_FP8 | COMPRESSED, [1, 2, 4], [1, 2, 4, 8]),
    (QWEN_30B, [1, 2, 4, 8], [1, 2, 4, 8]),
    (QWEN_30B | FP8, [1, 2], [1, 2, 4, 8]),
    (QWEN_30B | INT4, [1, 2], [1, 2, 4, 8]),
    (QWEN_30B | HALVED, [1, 2, 4, 8], [1, 2, 4, 8]),
    (QWEN_30B | AWQ, [1, 2, 4, 8], [1, 2, 4, 8]),
    (public.GLM45_AIR | FP8, [1], [1]),
    (public.DEEPSEEK_V3 | FP8, [1, 2, 4, 8], [1, 2, 4, 8]),
    (public.KIMI_K2 | FP8, [1, 2, 4, 8], [1, 2, 4, 8]),
    (public.QWEN3_NEXT | FP8, [1, 2, 4], [1, 2, 4]),
    (public.MINIMAX_M2 | FP8, [1, 2, 4], [1, 2, 4, 8]),
    (dense(29568, quant_method="gptq", bits=4, group_size=128), [1], [1]),
    (dense(29568, quant_method="awq", bits=4, group_size=32), [1, 2, 4], [1, 2, 4]),
    (dense(29696, quant_method="awq", bits=4, group_size=128), [1, 2, 4, 8], [1, 2, 4, 8]),
    (dense(27648, quant_method="fp8", weight_block_size=[128, 128]), [1, 2, 4, 8], [1, 2, 4, 8]),
    (dense(27648, quant_method="awq", bits=4, group_size=128), [1, 2, 4, 8], [1, 2, 4, 8]),
    (public.QWEN3_NEXT, [1, 2, 4, 8], [1, 2, 4, 8]),
])  # fmt: skip
def test_sizes(config: dict[str, Any], sizes: list[int], with_whole_experts: list[int]) -> None:
    shape = read_architecture(config)
    assert divisions(shape, 8) == sizes
    assert divisions(shape, 8, expert_parallel=True) == with_whole_experts


def test_one_size_is_left_where_vllm_refuses_all() -> None:
    ragged = read_architecture(moe(2048, 704, 48, 32) | FP8)
    assert divisions(ragged, 8) == [1]
    assert division_problem(ragged, 1) is not None
