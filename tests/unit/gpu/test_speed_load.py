"""Settings of a speed measurement, and how its rows become evidence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from measurements.gpu import evidence, geometry, speed
from peagle.catalog.evidence import read_run


def test_imposed_rates_give_the_published_acceptance_lengths() -> None:
    def length(pair: str, drafter: str, k: int) -> float:
        return round(1 + sum(speed.rates(pair, drafter, k)), 2)

    assert [length("gpt-oss-20b", "p-eagle", k) for k in (3, 7)] == [2.87, 3.38]
    assert length("gpt-oss-20b", "eagle3", 3) == 2.24
    assert length("qwen3-coder-30b", "p-eagle", 10) == pytest.approx(6.66, abs=0.02)
    assert length("qwen3-coder-30b", "p-eagle", 4) == pytest.approx(4.30, abs=0.08)
    assert length("gpt-oss-120b", "p-eagle", 5) == pytest.approx(3.13, abs=0.01)
    assert length("gemma-4-31b", "eagle3", 5) == pytest.approx(2.95, abs=0.02)


def test_a_list_of_settings() -> None:
    none, head = speed.settings("gpt-oss-20b", "none,p-eagle:5")
    assert (none.drafter, none.k) == (None, 0)
    assert (head.drafter, head.k, head.max_num_batched_tokens) == ("p-eagle", 5, 8192)
    (adaptive,) = speed.settings("gpt-oss-20b", "eagle3-adaptive:5")
    eagle3 = geometry.Setting("gpt-oss-20b", "eagle3", 5)
    assert geometry.speculation(adaptive) == {
        **(geometry.speculation(eagle3) or {}),
        "enable_adaptive_verification": True,
    }
    assert adaptive.own() == eagle3.own()
    (graphs,) = speed.settings("gpt-oss-20b", "p-eagle:16:2176")
    assert geometry.engine_arguments(graphs)["max_cudagraph_capture_size"] == 2176
    for wrong in ("p-eagle", "none:3", "p-eagle:x", "mtp:3", "p-eagle:3:1:1"):
        with pytest.raises(ValueError, match=r"p-eagle:3|published"):
            speed.settings("gpt-oss-20b", wrong)


# The evidence of speeds from the rows of a measurement.
SECONDS = {"mean": 0.1, "p50": 0.1, "p90": 0.1, "p99": 0.2}
TRY = {"output_tokens_per_second": 2.0, "acceptance_length": 2.0, "ttft_seconds": SECONDS,
       "itl_seconds": SECONDS, "tpot_seconds": SECONDS}  # fmt: skip
ROW: dict[str, Any] = {
    "pair": "gpt-oss-20b", "device": "NVIDIA H100 80GB HBM3", "drafter": "p-eagle", "k": 3,
    "workload": "short-prompt", "concurrency": 1, "prompt_tokens": 128, "output_tokens": 400,
    "tries": [TRY, {**TRY, "output_tokens_per_second": 3.0}], "vllm": "0.28.0+cu130",
    "measured": "2026-11-22T09:49:45+00:00", "torch": "2.13.0+cu130", "driver": "580.1",
    "tensor_parallel_size": 1, "temperature": 1.0, "biases": "zero", "drafted_tokens": "random",
    "host": {"cpus": 16}, "command": "python -m measurements.gpu.speed",
}  # fmt: skip
ALONE = {**ROW, "drafter": None, "k": 0, "tries": [{**TRY, "acceptance_length": None}]}


def document(folder: Path, *rows: dict[str, Any]) -> dict[str, Any]:
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return evidence.speed_document([folder])


def test_it_names_pair_gpu_software_host_and_command(tmp_path: Path) -> None:
    collected = document(tmp_path, ROW, ALONE)
    assert collected["pair"] == "openai/gpt-oss-20b"
    assert (collected["device"], collected["gpu"]) == ("NVIDIA H100 80GB HBM3", "H100")
    assert (collected["engine"]["version"], collected["date"]) == ("0.28.0", "2026-11-22")
    assert (collected["torch"], collected["driver"]) == ("2.13.0+cu130", "580.1")
    assert (collected["hosts"], collected["commands"]) == ([ROW["host"]], [ROW["command"]])
    assert [row["k"] for row in collected["speeds"]] == [0, 3]
    assert [row["tries"] for row in collected["raw"]] == [ALONE["tries"], ROW["tries"]]


def test_the_catalogue_reads_it_with_interval_and_latencies(tmp_path: Path) -> None:
    long = {"prompt_tokens": 2048, "output_tokens": 256}
    path = tmp_path / "speed.json"
    evidence.write(path, document(tmp_path, {**ROW, **long}, {**ROW, "tries": [TRY]}, ALONE, ROW))
    run = read_run(path)
    assert run
    assert [(row.k, row.prompt_tokens, row.high) for row in run.speeds] == [
        (0, 128, 2),
        (3, 128, 3),
        (3, 2048, 3),
    ]
    assert run.speeds[0].itl_seconds
    assert run.speeds[0].itl_seconds.p99 == 0.2
    assert len(path.read_text().splitlines()) < 50


@pytest.mark.parametrize(
    "other",
    [
        {"temperature": 0.0},
        {"driver": "581.0"},
        {"device": "NVIDIA H200"},
        {"pair": "gpt-oss-120b"},
    ],
)
def test_it_is_from_one_pair_gpu_and_software(other: dict[str, Any], tmp_path: Path) -> None:
    (value,) = other.values()
    with pytest.raises(ValueError, match=str(value)):
        document(tmp_path, ROW, {**ROW, **other})


# Dummy weights without biases: a token's experts depend on the token.
