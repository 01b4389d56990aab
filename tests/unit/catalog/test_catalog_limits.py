"""Catalogue files that are small and mean very much: read within limits, and reported as one
problem with its line."""

from __future__ import annotations

import os
import time
import tracemalloc
from pathlib import Path

import pytest

from peagle.catalog import find_pair, load_catalog
from peagle.catalog.documents import BadFile, parse_document, read_document
from peagle.catalog.loading import check_catalog_file
from tests.unit.catalog.catalog_files import GOOD, write_target

BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefg", "bcdefgh", strict=False)
)
"""Eight lines, which stand for 100 million values."""

HOSTILE = {
    "aliases of aliases": (BOMB, "more than 50,000 values"),
    "one alias many times": (
        f"a: &a [{'x,' * 400}]\nb: [{'*a,' * 400}]", "more than 50,000 values",
    ),
    "aliases as keys": ("a: &a x\n? [*a]\n: 1\n", "a key must be plain text"),
    "deep brackets": ("a: " + "[" * 200_000, "nested more than 40 deep"),
    "deep braces": ("{a: " * 50_000, "nested more than 40 deep"),
    "deep dashes": ("- " * 200_000, "nested more than 40 deep"),
    "deep questions": ("? " * 50_000, "a key must be plain text"),
    "deep indents": ("".join(" " * n + "a:\n" for n in range(1_000)), "nested more than 40 deep"),
    "many values": ("a: [" + "x," * 60_000 + "]", "more than 50,000 values"),
    "an alias to its own list": ("a: &a [*a]", "refers to itself"),
    "an alias to its own mapping": ("a: &a {b: {c: *a}}", "refers to itself"),
    "a long file": ("# " + "x" * 1_000_001, "More than 1,000,000 bytes"),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_one_problem_of_small_cost(name: str, tmp_path: Path) -> None:
    text, message = HOSTILE[name]
    path = write_target(tmp_path, text)
    tracemalloc.start()
    try:
        start = time.process_time()
        (problem,) = check_catalog_file(path)
        seconds, (_, most) = time.process_time() - start, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert message in problem.message
    assert problem.fix
    assert seconds < 10  # of the processor, traced; without tracing 0.6 s
    assert most < 128 << 20


def test_aliases_within_the_limits_are_read() -> None:
    document = parse_document("a: &a [1, 2]\nb: *a\nc: {d: *a}\n", "x.yaml")
    assert document.data == {"a": [1, 2], "b": [1, 2], "c": {"d": [1, 2]}}
    assert document.line(("c", "d", 1)) == 1


def test_an_anchor_has_one_value() -> None:
    with pytest.raises(BadFile) as raised:
        parse_document("a: &a 1\nb: &a 2\nc: *a\n", "x.yaml")
    assert raised.value.problem.line == 2
    assert "duplicate anchor" in raised.value.problem.message


def test_a_number_beyond_any_model_is_a_problem_and_not_a_long_loop(tmp_path: Path) -> None:
    path = write_target(tmp_path, GOOD.replace("layers: 32", "layers: 2147483647"))
    assert {problem.key for problem in check_catalog_file(path)} == {
        "architecture.layers", "architecture.attention[0].layers",
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_a_file_that_is_no_file_is_not_waited_for(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    os.mkfifo(path) if kind == "pipe" else path.mkdir()
    with pytest.raises(BadFile, match=r"read: (Not a regular file|Is a directory)"):
        read_document(path, "x.yaml")


def test_a_pipe_among_the_targets_stops_no_other_target(tmp_path: Path) -> None:
    path = write_target(tmp_path)
    path.unlink()
    os.mkfifo(path)
    assert find_pair(load_catalog(tmp_path), "tiny").target.id == "peagle/tiny"
    (problem,) = check_catalog_file(path)
    assert "Not a regular file" in problem.message
