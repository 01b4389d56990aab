"""Measured speeds: read at first use; incomplete ones are an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from peagle.catalog import load_catalog
from peagle.catalog.loading import check_catalog, check_catalog_file
from peagle.errors import CatalogError
from tests.support import raises_code

ROW: dict[str, Any] = {
    "drafter": "p-eagle",
    "k": 7,
    "concurrency": 1,
    "output_tokens_per_second": 773.0,
    "acceptance_length": 3.38,
    "prompt_tokens": 128,
    "output_tokens": 400,
}
SECONDS = {"mean": 0.25, "p50": 0.2, "p90": 0.4, "p99": 0.5}
ALONE = {"drafter": None, "k": 0, "concurrency": 1, "output_tokens_per_second": 334}
RUN: dict[str, Any] = {
    "pair": "openai/gpt-oss-120b",
    "date": "2026-11-20",
    "engine": {"name": "vllm", "version": "0.26.0"},
    "device": "NVIDIA H200",
    "gpu": "H200",
    "gpu_count": 1,
    "tensor_parallel_size": 1,
    "method": "dummy weights",
    "synthetic": True,
    "script": "measurements/gpu/speed.py",
    "speeds": [ROW, ALONE],
}
WITHOUT = {key: value for key, value in RUN.items() if key != "synthetic"}


def write(folder: Path, document: Any, name: str = "speed.json") -> Path:
    path = folder / "evidence" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def test_speeds_belong_to_their_target(tmp_path: Path) -> None:
    write(tmp_path, RUN)
    speeds = load_catalog(tmp_path).speeds
    (run,) = speeds["openai/gpt-oss-120b"]
    assert (run.gpu, run.vllm, run.synthetic, run.file) == ("H200", "0.26.0", True, "speed.json")
    assert [row.output_tokens_per_second for row in run.speeds] == [773, 334]
    assert [run.speeds for run in speeds["peagle/tiny"]] == [()], "it has acceptance lengths only"
    assert speeds.get("google/gemma-4-31B-it", ()) == ()
    assert "openai/gpt-oss-120b" in list(speeds)


def test_a_speed_may_have_an_interval_and_latencies(tmp_path: Path) -> None:
    more = {"low": 700.0, "high": 800.0, "repetitions": 3, "ttft_seconds": SECONDS}
    write(tmp_path, RUN | {"speeds": [ROW | more, ALONE]})
    row, alone = load_catalog(tmp_path).speeds["openai/gpt-oss-120b"][0].speeds
    assert (row.low, row.high, row.repetitions) == (700, 800, 3)
    assert row.ttft_seconds
    assert row.ttft_seconds.p99 == 0.5
    assert (alone.low, alone.itl_seconds) == (None, None)


def test_trained_heads_answer_before_imposed_acceptance_then_the_newest(tmp_path: Path) -> None:
    runs = {"a": ("2026-11-20", True), "b": ("2026-11-01", False), "c": ("2026-11-10", False)}
    for name, (day, synthetic) in runs.items():
        write(tmp_path, RUN | {"date": day, "synthetic": synthetic}, f"{name}.json")
    found = load_catalog(tmp_path).speeds["openai/gpt-oss-120b"]
    assert [run.file for run in found] == ["c.json", "b.json", "a.json"]


def test_speeds_of_the_users_catalogue_answer_before_bundled_ones(tmp_path: Path) -> None:
    write(tmp_path, RUN | {"date": "2026-01-01"}, "own.json")
    found = load_catalog(tmp_path).speeds["openai/gpt-oss-120b"]
    assert found[0].file == "own.json"
    assert [run.own for run in found] == [True] + [False] * (len(found) - 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pair": "peagle/tinny"}, "pair: 'peagle/tinny' is not in the catalogue"),
        ({"results": [{"drafter": "x", "k": 5, "acceptance_length": 2.4}]}, "drafter: 'x' is not"),
        ({"engine": {"name": "tgi", "version": "0.28.0"}}, 'engine.name: is "tgi"'),
    ],
)
def test_acceptance_that_no_plan_can_use_is_a_problem(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    results = [{"drafter": "p-eagle", "k": 5, "acceptance_length": 2.4}]
    engine = {"version": "0.28.0"}
    facts = {"pair": "peagle/tiny", "date": "2026-11-20", "device": "CPU", "engine": engine}
    write(tmp_path, facts | {"results": results} | change)
    (problem,) = check_catalog(tmp_path)[1]
    assert message in problem.text


def test_files_without_speeds_are_ignored(tmp_path: Path) -> None:
    write(tmp_path, {"rows": ["speeds", "openai/gpt-oss-120b"]})
    write(tmp_path, ["openai/gpt-oss-120b", "speeds"], "list.json")
    assert "openai/gpt-oss-120b" not in load_catalog(tmp_path).speeds
    assert check_catalog_file(tmp_path / "evidence" / "speed.json") == []


def test_speeds_of_other_targets_are_not_read(tmp_path: Path) -> None:
    write(tmp_path, RUN | {"speeds": "broken"})
    catalog = load_catalog(tmp_path)
    assert [run.speeds for run in catalog.speeds["peagle/tiny"]] == [()]
    with raises_code("catalog", CatalogError) as refused:
        catalog.speeds.get("openai/gpt-oss-120b")
    assert "speed.json: speeds: " in refused.value.message


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ('{"speeds": [', "is not valid JSON"),
        (WITHOUT, "synthetic: missing key"),
        (RUN | {"engine": {}}, "engine.version: missing key"),
        (RUN | {"engine": {"version": 0.26}}, "engine.version: is 0.26"),
        (RUN | {"pair": None}, "pair: missing key"),
        (RUN | {"date": "yesterday"}, 'date: is "yesterday"'),
        (RUN | {"gpu": 200}, "gpu: is 200"),
        (RUN | {"tensor_parallel_size": 0}, "tensor_parallel_size: is 0"),
        (RUN | {"synthetic": "no"}, 'synthetic: is "no"'),
        (RUN | {"speeds": 5}, "speeds: is 5"),
        (RUN | {"speeds": []}, "speeds: is empty"),
        (RUN | {"speeds": [ROW | {"k": "7"}]}, 'speeds[0].k: is "7"'),
        (RUN | {"speeds": [ROW | {"output_tokens_per_second": 0}]}, "output_tokens_per_second"),
        (RUN | {"speeds": [ROW | {"output_tokens_per_second": float("nan")}]}, "has NaN"),
        (RUN | {"speeds": [ROW | {"concurrency": 0}]}, "speeds[0].concurrency: is 0"),
        (RUN | {"speeds": [ROW | {"acceptance_length": 0.5}]}, "acceptance_length: is 0.5"),
        (RUN | {"speeds": [ROW | {"acceptance_length": 8.1}]}, "acceptance_length 8.1 with k 7"),
        (RUN | {"speeds": [ROW | {"repetitions": 0}]}, "speeds[0].repetitions: is 0"),
        (RUN | {"speeds": [ROW | {"itl_seconds": {"p50": 1}}]}, "itl_seconds.mean: missing key"),
        (RUN | {"speeds": [ROW | {"ttft_seconds": SECONDS | {"p50": -1}}]}, "ttft_seconds.p50: is"),
        (RUN | {"speeds": [{"drafter": "p-eagle"}]}, "speeds[0].k: missing key"),
        (RUN | {"speeds": [ROW | {"drafter": None}]}, "speeds[0]: drafter null with k 7"),
        (RUN | {"speeds": [ROW | {"k": 0}]}, 'speeds[0]: drafter "p-eagle" with k 0'),
        (RUN | {"speeds": [ROW, ALONE, ROW]}, "speeds[2]: duplicate row"),
        (RUN | {"speeds": ["fast"]}, 'speeds[0]: is "fast"'),
        (RUN | {"engine": {"name": "sglang", "version": "0.28.0"}}, 'engine.name: is "sglang"'),
    ],
)
def test_incomplete_speeds_are_an_error(document: Any, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, document)
    (problem,) = check_catalog_file(path)
    assert str(path) in problem.text
    assert message in problem.text
    if isinstance(document, dict) and document["pair"]:
        with raises_code("catalog", CatalogError) as caught:
            load_catalog(tmp_path).speeds.get("openai/gpt-oss-120b")
        assert caught.value.message == problem.text


@pytest.mark.parametrize(
    ("document", "message", "fix"),
    [
        (RUN | {"gpu": "H20O", "device": "NVIDIA H20O"}, "gpu: 'H20O'", "H200"),
        (RUN | {"pair": "openai/gpt-oss-12b"}, "pair: 'openai/gpt-oss-12b'", "120b"),
        (RUN | {"speeds": [ROW | {"drafter": "p-eagel"}]}, "drafter: 'p-eagel'", "p-e"),
    ],
)
def test_speeds_of_unknown_names_are_problems(
    document: Any, message: str, fix: str, tmp_path: Path
) -> None:
    write(tmp_path, RUN, "good.json")
    write(tmp_path, document)
    (problem,) = check_catalog(tmp_path)[1]
    assert message in problem.text
    assert fix in problem.fix
