"""The file of a verdict: the same bytes for the same verdict, and one clear line for a bad one."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from peagle.catalog import load_catalog
from peagle.errors import PeagleError, VerdictFileError
from peagle.planning.verdict import VerdictRequest, make_verdict
from peagle.render.verdict_file import read_verdict, verdict_bytes, verdict_from
from peagle.speed.models import WORKLOADS, Workload
from peagle.speed.verdict import Setting, Verdict
from tests.support import raises_code


@cache
def verdict() -> Verdict:
    sizes = {name: WORKLOADS[name] for name in ("short-prompt", "long-prompt")}
    request = VerdictRequest("gpt-oss-20b", "H200", workloads=sizes, loads=(1, 32), vllm="0.26.0")
    return make_verdict(request, load_catalog())


def document() -> dict[str, Any]:
    made: dict[str, Any] = json.loads(verdict_bytes(verdict()))
    return made


def test_the_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    path.write_bytes(verdict_bytes(verdict()))

    assert read_verdict(path) == verdict()
    assert verdict_bytes(read_verdict(path)) == path.read_bytes()


def test_the_nearest_load_and_size_answer() -> None:
    found = verdict()
    sizes = [found.at(size, 1)[0].name for size in (None, Workload(100, 300), Workload(9000, 50))]
    assert sizes == ["short-prompt", "short-prompt", "long-prompt"]
    loads = [found.at(None, load)[1].concurrency for load in (0.5, 1, 5, 6, 1000)]
    assert loads == [1, 1, 1, 32, 32]
    assert found.at(None, 1)[1].best == Setting(drafter="p-eagle", k=7)


def first_load(document: dict[str, Any]) -> dict[str, Any]:
    load: dict[str, Any] = document["workloads"][0]["loads"][0]
    return load


def first_speed(document: dict[str, Any]) -> dict[str, Any]:
    speed: dict[str, Any] = first_load(document)["speeds"][0]
    return speed


DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another format": (lambda d: d.update(format=2), "verdict format 2"),
    "a missing key": (lambda d: d.pop("gpu"), "'gpu'"),
    "an unknown key": (lambda d: d.update(gpus=1), "'gpus'"),
    "no loads": (lambda d: d["workloads"][0].update(loads=[]), "workloads[0].loads: "),
    "no winner": (lambda d: first_load(d).update(best=None), "best and ties"),
    "a setting twice": (lambda d: first_load(d)["speeds"].append(first_speed(d)), "twice"),
    "a speed as text": (lambda d: first_speed(d).update(tokens_per_second="9"), "number"),
    "K without a drafter": (lambda d: first_speed(d)["setting"].update(k=3), "drafter"),
    "control characters": (lambda d: d.update(target="a\x1b[31mb"), "target: "),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_verdict_has_one_clear_error(damage: str) -> None:
    change, message = DAMAGE[damage]
    damaged = document()
    change(damaged)
    with pytest.raises(VerdictFileError) as found:
        verdict_from(damaged, "verdict.json")

    assert message in found.value.message
    assert found.value.message.startswith("verdict.json")
    assert "Value error" not in found.value.message
    assert len(str(found.value).splitlines()) == 1
    assert found.value.command[:2] == ("peagle", "verdict")


FILES = {
    "missing": (None, "there is no file"),
    "empty": (b"", "is empty"),
    "truncated": (verdict_bytes(verdict())[:5000], "is not valid JSON"),
    "not JSON": (b"a verdict", "is not valid JSON"),
    "not UTF-8": (b"\xff\xfe{}", "is not UTF-8"),
    "a list": (b"[]", "is not a verdict"),
    "no verdict": (b'{"format": 1, "name": "x"}', "is not a verdict"),
    "a plan": (b'{"format": 1, "requests": []}', "verdict.json is a plan, not a verdict"),
    "NaN": (verdict_bytes(verdict()).replace(b'"low": ', b'"low": NaN, "x": ', 1), "NaN"),
    "deep": (b"[" * 100_000, "cannot be read"),
    "huge": (b'"' + b"x" * (9 << 20) + b'"', "longer than"),
}


OTHER_FILES = {"a list", "no verdict", "a plan"}


@pytest.mark.parametrize("name", FILES)
def test_a_bad_file_has_one_clear_error(name: str, tmp_path: Path) -> None:
    content, message = FILES[name]
    path = tmp_path / "verdict.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PeagleError) as found:
        read_verdict(path)

    assert message in found.value.message
    assert found.value.code == ("not-a-verdict" if name in OTHER_FILES else "verdict-file")
    assert len(str(found.value)) < 400


def test_a_folder_is_no_verdict(tmp_path: Path) -> None:
    with raises_code("verdict-file", VerdictFileError):
        read_verdict(tmp_path)
