"""Wrong catalogue files; each is reported with file, line, key and expected value."""

import os
import time
import tracemalloc
from pathlib import Path

import pytest

from peagle.catalog import find_pair, load_catalog
from peagle.catalog.documents import parse_document
from peagle.catalog.loading import check_catalog, check_catalog_file
from peagle.errors import CatalogError
from tests.support import raises_code
from tests.unit.catalog.catalog_files import GOOD, write_target

DAMAGE = [
    ("k_trained: 8", "k_trained: ten", "drafters[0].k_trained", "k_trained"),
    ("layers: 32\n  q", 'layers: "32"\n  q', "architecture.layers", 'layers: "32"'),
    ("k_recommended: 5", "k_recommended: 9", "drafters[0].k_recommended", "k_recommended: 9"),
    ('min_vllm: "0.22.0"', "min_vllm: 0.20", "drafters[0].min_vllm", "min_vllm: 0.20"),
    ("k_trained: 8", "k_trianed: 8", "drafters[0].k_trianed", "k_trianed"),
    ("licence: apache-2.0\n", "", "licence", "id: "),
    ("    source: the card\n  - name: ngram", "  - name: ngram", "drafters[0].source",
     "- name: p-eagle"),
    ("prompts: [Hello]", "prompts: Hello", "proof.prompts", "prompts"),
    ("value: 4", "value: [4]", "drafters[0].engine_arguments[0].value", "stream-interval"),
    ("k_trained: 8", "k_trained: 8\n    k_trained: 10", "k_trained", "k_trained: 10"),
    ("id: acme/chat-7b", "id: acme/chat-8b", "id", "id: "),
    ("default_drafter: p-eagle", "default_drafter: p-eagel", "default_drafter", "default_drafter"),
    ("kind: full", "kind: sliding", "architecture.attention[0]", "kind: sliding"),
    ("name: ngram", "name: p-eagle", "drafters[1].name", "name: p-eagle"),
    ("k_trained: 8", "k_trained: 8\n    fallback: eagle3", "drafters[0].fallback", "fallback"),
    ("    weights: acme/chat-7b-p-eagle\n", "", "drafters[0].weights", "- name: p-eagle"),
    ("    weights: acme/chat-7b-p-eagle\n",
     "    weights: acme/chat-7b-p-eagle\n    public: false\n", "drafters[0].weights",
     "weights: acme/chat-7b-p-eagle"),
    ("weights: acme/chat-7b\n", "weights: ./chat-7b/target\n", "weights", "./chat-7b/target"),
    ("weights: acme/chat-7b\n", "weights: chat\n", "weights", "weights: chat"),
    ("weights: acme/chat-7b\n", "weights: 's3://'\n", "weights", "weights: 's3://'"),
    ("layers: 32\n  q", "layers: 33\n  q", "architecture.attention", "- {kind"),
    ("licence: apache-2.0", "  licence: apache-2.0", "", "licence"),
    ("prompts: [Hello]", "prompts: [Hello", "", "source: the card"),
    ("licence: apache-2.0", "licence: *nothing", "", "*nothing"),
    ("proof:", "proof: &me\n  extra: *me", "", "extra: *me"),
]  # fmt: skip
"""What is replaced by what, the key of the problem, and what is on its line."""


@pytest.mark.parametrize(("old", "new", "key", "mark"), DAMAGE, ids=[row[1] for row in DAMAGE])
def test_a_problem_has_file_line_and_key(
    old: str, new: str, key: str, mark: str, tmp_path: Path
) -> None:
    assert old in GOOD
    text = GOOD.replace(old, new, 1)
    path = write_target(tmp_path, text)
    problem = check_catalog_file(path)[0]
    assert (problem.file, problem.key) == (str(path), key)
    assert problem.message
    lines = [number for number, line in enumerate(text.splitlines(), start=1) if mark in line]
    assert problem.line in lines


@pytest.mark.parametrize(
    "content",
    [b"", b"# only a comment\n", b"just words\n", b"- a\n- list\n", b"title: caf\xe9\n",
     b"a: 1\n---\nb: 2\n", b"\x00", b"? [a, b]\n: 1\n"],
)  # fmt: skip
def test_an_unreadable_file_is_one_problem(content: bytes, tmp_path: Path) -> None:
    path = write_target(tmp_path)
    path.write_bytes(content)
    (problem,) = check_catalog_file(path)
    assert problem.message


def test_all_problems_of_a_file_are_reported(tmp_path: Path) -> None:
    text = GOOD.replace("k_trained: 8", "k_trained: ten").replace(
        "licence: apache-2.0", "lisence: x"
    )
    path = write_target(tmp_path, text)
    keys = {problem.key for problem in check_catalog_file(path)}
    assert keys == {"drafters[0].k_trained", "licence", "lisence"}


def test_a_wrong_target_raises_its_first_problem_and_counts_the_others(tmp_path: Path) -> None:
    text = GOOD.replace("k_trained: 8", "k_trained: ten").replace(
        "licence: apache-2.0", "lisence: x"
    )
    write_target(tmp_path, text)
    with raises_code("catalog", CatalogError) as caught:
        find_pair(load_catalog(tmp_path), "chat-7b")
    assert "chat-7b.yaml:6: lisence: " in caught.value.message
    assert caught.value.command == ("peagle", "catalog", "check")
    assert "2 more problems" in caught.value.fix
    assert "did you mean licence?" in caught.value.fix


@pytest.mark.parametrize(("table", "old", "new", "key"), [
    ("runtimes.yaml", 'default: "0.28.0"', 'default: "0.99.0"', "default"),
    ("runtimes.yaml", '"626614931356"', "626614931356", "accounts.af-south-1"),
    ("instances.yaml", "sm_75", "7.5", "instances[0].gpu_architecture"),
    ("instances.yaml", "2026-07-01", "July", "instances[0].prices[0].date"),
    ("instances.yaml", "0.7364", "0", "instances[0].prices[0].usd_per_hour"),
    ("instances.yaml", "ml.g4dn.2xlarge", "g4dn.2xlarge", "instances[1].type"),
])  # fmt: skip
def test_a_wrong_table_of_the_user_is_an_error(
    table: str, old: str, new: str, key: str, tmp_path: Path
) -> None:
    bundled = (Path(load_catalog().origins["peagle/tiny"]).parents[1] / table).read_text()
    (tmp_path / table).write_text(bundled.replace(old, new, 1))
    with raises_code("catalog", CatalogError) as caught:
        load_catalog(tmp_path)
    assert f"{table}:" in caught.value.message
    assert f": {key}: " in caught.value.message


def test_files_that_are_never_read_are_problems(tmp_path: Path) -> None:
    write_target(tmp_path)
    (tmp_path / "acme" / "other.yml").write_text(GOOD)
    (tmp_path / "chat-7b.yaml").write_text(GOOD)
    _, problems = check_catalog(tmp_path)
    assert [Path(problem.file).name for problem in problems] == ["other.yml", "chat-7b.yaml"]
    assert {problem.message for problem in problems} == {"is not read from this path"}


# Catalogue files that are small and mean very much: read within limits, and reported as one
BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefg", "bcdefgh", strict=False)
)
"""Eight lines, which stand for 100 million values."""
LIMITS = "more than 50,000 values, or 40 levels"
HOSTILE = {
    "aliases of aliases": (BOMB, LIMITS),
    "one alias many times": (f"a: &a [{'x,' * 400}]\nb: [{'*a,' * 400}]", LIMITS),
    "aliases as keys": ("a: &a x\n? [*a]\n: 1\n", "a key must be plain text"),
    "deep brackets": ("a: " + "[" * 200_000, LIMITS),
    "deep questions": ("? " * 50_000, "a key must be plain text"),
    "many values": ("a: [" + "x," * 60_000 + "]", LIMITS),
    "an alias to its own list": ("a: &a [*a]", "refers to itself"),
    "a long file": ("# " + "x" * 1_000_001, "More than 1,000,000 bytes"),
}


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
    assert document.line(("c", "d", 1)) == 3


def test_a_pipe_among_the_targets_is_a_problem(tmp_path: Path) -> None:
    path = write_target(tmp_path)
    path.unlink()
    os.mkfifo(path)
    (problem,) = check_catalog_file(path)
    assert "Not a regular file" in problem.message
