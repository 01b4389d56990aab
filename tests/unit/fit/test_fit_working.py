"""Working memory, term by term, against what torch counted in vLLM 0.26.0 on an H200."""

from __future__ import annotations

from typing import Any

import pytest

from peagle.fit.estimate import bytes_taken, graph_bytes, working_memory
from tests.unit.fit.geometry import case

MIB = 1 << 20


def phases(pair: str, head: str | None = "p-eagle", **engine: Any) -> dict[str, float]:
    return {
        name: size / MIB for name, size in working_memory(case(pair, head, **engine))[1].items()
    }


@pytest.mark.parametrize(
    ("pair", "peak"), [("gpt-oss-20b", 742.9), ("gpt-oss-120b", 744.4), ("qwen3-coder-30b", 952.0)]
)
def test_activations_of_the_target(pair: str, peak: float) -> None:
    workspace = working_memory(case(pair))[0]["experts"] / MIB
    assert phases(pair)["target"] + workspace == pytest.approx(peak, abs=8)


@pytest.mark.parametrize(
    ("pair", "peak"), [("gpt-oss-20b", 1008.0), ("gpt-oss-120b", 876.0), ("qwen3-coder-30b", 1344)]
)
def test_activations_of_the_drafter(pair: str, peak: float) -> None:
    workspace = working_memory(case(pair))[0]["experts"] / MIB
    assert phases(pair)["drafter"] + workspace == pytest.approx(peak, abs=3)


@pytest.mark.parametrize(
    ("pair", "head", "phase", "peak"),
    [
        ("gpt-oss-20b", None, "compiling", 1194.6 - 32),
        ("gemma-4-31b", None, "compiling", 2856.0),
        ("gpt-oss-120b", "p-eagle", "compiling_drafter", 1570.6),
        ("qwen3-coder-30b", "p-eagle", "compiling_drafter", 1454.0),
    ],
)
def test_compilation_at_first_start_needs_a_second_embedding(
    pair: str, head: str | None, phase: str, peak: float
) -> None:
    kept = working_memory(case(pair))[0]["experts"] / MIB
    assert phases(pair, head)[phase] + kept == pytest.approx(peak, abs=40)
    assert phase not in phases(pair, head, compiled=True)


@pytest.mark.parametrize(
    ("pair", "head", "seqs", "peak"),
    [
        ("gpt-oss-20b", "p-eagle", 1024, 6054.3),
        ("gpt-oss-120b", "p-eagle", 128, 883.0),
        ("qwen3-coder-30b", None, 128, 911.9 - 32),
    ],
)
def test_memory_of_sampling(pair: str, head: str | None, seqs: int, peak: float) -> None:
    kept = working_memory(case(pair))[0]["experts"] / MIB
    assert phases(pair, head, max_num_seqs=seqs)["sampling"] + kept == pytest.approx(peak, abs=10)


@pytest.mark.parametrize(
    ("pair", "head", "k", "gib"),
    [
        ("gpt-oss-20b", None, 0, 0.494),
        ("gpt-oss-120b", None, 0, 0.514),
        ("qwen3-coder-30b", None, 0, 0.299),
        ("gpt-oss-120b", "p-eagle", 5, 1.055),
        ("gpt-oss-20b", "p-eagle", 3, 0.686),
        ("qwen3-coder-30b", "p-eagle", 10, 0.688),
        ("gpt-oss-120b", "eagle3", 3, 0.729),
        ("gemma-4-31b", None, 0, 0.0),
    ],
)
def test_memory_of_cuda_graphs(pair: str, head: str | None, k: int, gib: float) -> None:
    assert graph_bytes(case(pair, head, k=k)) / (1 << 30) == pytest.approx(gib, abs=0.15)


def test_older_engines_do_not_count_their_graphs() -> None:
    assert graph_bytes(case("gpt-oss-20b", vllm="0.20.2")) == 0
    assert graph_bytes(case("gpt-oss-20b", enforce_eager=True)) == 0


def test_tensor_parallelism_needs_all_reduce_buffers() -> None:
    one, two, four = (
        bytes_taken(case("gpt-oss-20b", tensor_parallel_size=tp))["libraries_estimate"]
        for tp in (1, 2, 4)
    )
    assert one == 240 * MIB
    assert two - four == 4 * (2 * 64 - 4 * 2) * MIB
    assert one < four


def test_newer_engines_count_their_own_buffers() -> None:
    assert bytes_taken(case("gpt-oss-20b"))["buffers_estimate"] == 0
    newer, alone = (
        bytes_taken(case("gpt-oss-20b", head, vllm="0.28.0"))["buffers_estimate"]
        for head in ("p-eagle", None)
    )
    assert newer - alone == 2 * 8192 * 2880 * 2, "the head's inputs and hidden states"
