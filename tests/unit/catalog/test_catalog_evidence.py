"""Evidence: a drafter is verified by a file under evidence/ only."""

import json
from pathlib import Path
from typing import Any

import pytest

from peagle.catalog import find_pair, load_catalog
from peagle.catalog.loading import check_catalog_file
from peagle.catalog.summary import find_evidence, summarize_target
from peagle.errors import CatalogError
from tests.support import raises_code

MEASURED: dict[str, Any] = {
    "pair": "openai/gpt-oss-20b",
    "date": "2026-11-20",
    "device": "one H200",
    "engine": {"version": "0.28.0"},
    "results": [
        {"drafter": "p-eagle", "k": 7, "acceptance_length": 3.5, "drafts": 812},
        {"drafter": "RedHatAI/gpt-oss-20b-speculator.eagle3", "k": 3, "acceptance_length": 2.3},
    ],
}


def write(folder: Path, document: Any, name: str = "speed.json") -> Path:
    path = folder / "evidence" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


@pytest.mark.parametrize(("pair", "lengths"), [
    ("gpt-oss-20b+p-eagle", [3.5]),
    ("gpt-oss-20b+eagle3", [2.3]),
    ("gpt-oss-20b+ngram", []),
    ("gpt-oss-120b+p-eagle", []),
])  # fmt: skip
def test_evidence_belongs_to_its_target_and_drafter(
    pair: str, lengths: list[float], tmp_path: Path
) -> None:
    write(tmp_path, MEASURED, "gpt.json")
    catalog = load_catalog(tmp_path)
    match = find_pair(catalog, pair)
    assert match.drafter
    measured = find_evidence(catalog, match.target, match.drafter)
    assert [item["acceptance_length"] for item in measured] == lengths
    assert {item["file"] for item in measured} == ({"gpt.json"} if lengths else set())
    drafters = summarize_target(catalog, match.target)["drafters"]
    verified = {drafter["name"] for drafter in drafters if drafter["verified"]}
    assert (match.drafter.name in verified) is bool(lengths)


def test_other_json_files_are_ignored(tmp_path: Path) -> None:
    write(tmp_path, {"rows": [1, 2, 3]}, "gpt.json")
    assert [*load_catalog(tmp_path).speeds] == [*load_catalog().speeds]


@pytest.mark.parametrize(("document", "message"), [
    ('{"results": [', "is not valid JSON"),
    (MEASURED | {"engine": {}}, "engine.version: missing key"),
    (MEASURED | {"results": [{"drafter": "p-eagle"}]}, "results[0].k: missing key"),
    (MEASURED | {"results": [{**MEASURED["results"][0], "k": "x"}]}, 'and is "x"'),
    (MEASURED | {"pair": None}, "pair: should be a valid string"),
])  # fmt: skip
def test_incomplete_evidence_is_an_error(document: Any, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, document, "gpt.json")
    with raises_code("catalog", CatalogError) as caught:
        [*load_catalog(tmp_path).speeds]
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
    assert [problem.text for problem in check_catalog_file(path)] == [caught.value.message]


# Measured speeds: read at first use; incomplete ones are an error.
ROW: dict[str, Any] = {
    "drafter": "p-eagle", "k": 7, "concurrency": 1, "output_tokens_per_second": 773.0,
    "acceptance_length": 3.38, "prompt_tokens": 128, "output_tokens": 400,
}  # fmt: skip
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
    speeds = load_catalog(tmp_path).speeds["openai/gpt-oss-120b"]
    assert [run.file for run in speeds] == ["c.json", "b.json", "a.json"]


def test_speeds_of_the_users_catalogue_answer_before_bundled_ones(tmp_path: Path) -> None:
    write(tmp_path, RUN | {"date": "2026-01-01"}, "own.json")
    speeds = load_catalog(tmp_path).speeds["openai/gpt-oss-120b"]
    assert speeds[0].file == "own.json"
    assert [run.is_own for run in speeds] == [True] + [False] * (len(speeds) - 1)


def test_files_without_speeds_are_ignored(tmp_path: Path) -> None:
    write(tmp_path, {"rows": ["speeds", "openai/gpt-oss-120b"]})
    write(tmp_path, ["openai/gpt-oss-120b", "speeds"], "list.json")
    assert "openai/gpt-oss-120b" not in load_catalog(tmp_path).speeds
    assert check_catalog_file(tmp_path / "evidence" / "speed.json") == []


def test_speeds_of_other_targets_are_not_read(tmp_path: Path) -> None:
    write(tmp_path, RUN | {"speeds": "broken"})
    catalog = load_catalog(tmp_path)
    assert [run.speeds for run in catalog.speeds["peagle/tiny"]] == [()]
    with raises_code("catalog", CatalogError):
        catalog.speeds.get("openai/gpt-oss-120b")


@pytest.mark.parametrize(("document", "message"), [
    ('{"speeds": [', "is not valid JSON"),
    (WITHOUT, "speeds without the keys synthetic"),
    (RUN | {"engine": {}}, "engine.version: missing key"),
    (RUN | {"date": "yesterday"}, 'and is "yesterday"'),
    (RUN | {"speeds": [ROW | {"k": "7"}]}, 'speeds[0].k: should be'),
    (RUN | {"speeds": [ROW | {"output_tokens_per_second": 0}]}, "output_tokens_per_second"),
    (RUN | {"speeds": [ROW | {"output_tokens_per_second": float("nan")}]}, "is NaN"),
    (RUN | {"speeds": [ROW | {"acceptance_length": 8.1}]}, "acceptance_length 8.1 with k 7"),
    (RUN | {"speeds": [ROW | {"itl_seconds": {"p50": 1}}]}, "itl_seconds.mean: missing key"),
    (RUN | {"speeds": [ROW | {"ttft_seconds": SECONDS | {"p50": -1}}]}, ".p50: should be"),
    (RUN | {"speeds": [ROW | {"drafter": None}]}, "speeds[0]: drafter null with k 7"),
    (RUN | {"speeds": [ROW | {"k": 0}]}, 'speeds[0]: drafter "p-eagle" with k 0'),
    (RUN | {"engine": {"name": "sglang", "version": "0.28.0"}}, 'and is "sglang"'),
])  # fmt: skip
def test_incomplete_speeds_are_an_error(document: Any, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, document)
    (problem,) = check_catalog_file(path)
    assert str(path) in problem.text
    assert message in problem.text
    if isinstance(document, dict) and document["pair"]:
        with raises_code("catalog", CatalogError) as caught:
            load_catalog(tmp_path).speeds.get("openai/gpt-oss-120b")
        assert caught.value.message == problem.text
