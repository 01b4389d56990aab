"""Evidence: a drafter is verified by a file under evidence/ only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from peagle.catalog import find_pair, load_catalog
from peagle.catalog.evidence import evidence_for, load_evidence
from peagle.catalog.loading import check_catalog_file
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


def write_evidence(folder: Path, document: Any) -> Path:
    path = folder / "evidence" / "gpt.json"
    path.parent.mkdir()
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


@pytest.mark.parametrize(
    ("pair", "lengths"),
    [
        ("gpt-oss-20b+p-eagle", [3.5]),
        ("gpt-oss-20b+eagle3", [2.3]),
        ("gpt-oss-20b+ngram", []),
        ("gpt-oss-120b+p-eagle", []),
    ],
)
def test_evidence_belongs_to_its_target_and_drafter(
    pair: str, lengths: list[float], tmp_path: Path
) -> None:
    write_evidence(tmp_path, MEASURED)
    found = find_pair(load_catalog(), pair)
    assert found.drafter
    measured = evidence_for(load_evidence(tmp_path), found.target, found.drafter)
    assert [item.acceptance_length for item in measured] == lengths


def test_other_json_files_are_ignored(tmp_path: Path) -> None:
    write_evidence(tmp_path, {"rows": [1, 2, 3]})
    assert all(item.target == "peagle/tiny" for item in load_evidence(tmp_path))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", "is not valid JSON"),
        (MEASURED | {"engine": {}}, "engine.version: missing key"),
        (MEASURED | {"results": [{"drafter": "p-eagle"}]}, "results[0].k: missing key"),
        (MEASURED | {"results": 5}, "results: is 5"),
        (MEASURED | {"results": [{**MEASURED["results"][0], "k": "x"}]}, 'results[0].k: is "x"'),
        (MEASURED | {"pair": None}, "pair: missing key"),
    ],
)
def test_incomplete_evidence_is_an_error(document: Any, message: str, tmp_path: Path) -> None:
    path = write_evidence(tmp_path, document)
    with raises_code("catalog", CatalogError) as caught:
        load_evidence(tmp_path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
    assert [problem.text for problem in check_catalog_file(path)] == [caught.value.message]


def starts_file(folder: Path, **changed: Any) -> Path:
    start = {"pair": "gpt-oss-20b", "kind": "cold", "green_seconds": 300.5, **changed}
    runs = {"first": {"starts": [start]}}
    document = {"device": "NVIDIA H100", "engine": {"version": "0.28.0"}, "runs": runs}
    return write_evidence(folder, document)


def test_measured_starts_of_both_catalogues_are_read_when_they_are_used(tmp_path: Path) -> None:
    starts_file(tmp_path)
    found = load_catalog(tmp_path).starts
    (own,) = [one for one in found if one.file == "gpt.json"]
    assert (own.target, own.kind, own.seconds) == ("gpt-oss-20b", "cold", 300.5)
    assert (own.device, own.vllm) == ("NVIDIA H100", "0.28.0")
    assert {one.kind for one in load_catalog().starts} == {"cold", "kept", "restored"}


def test_a_wrong_start_is_an_error_where_it_is_used_and_checked(tmp_path: Path) -> None:
    path = starts_file(tmp_path, green_seconds="soon")
    catalog = load_catalog(tmp_path)
    with raises_code("catalog", CatalogError) as caught:
        _ = catalog.starts
    assert "green_seconds: is" in caught.value.message
    assert [problem.text for problem in check_catalog_file(path)] == [caught.value.message]
