"""On 60 columns tables stay readable: columns go or fold, and no word is broken."""

from __future__ import annotations

import re

import pytest

from peagle.catalog import load_catalog
from peagle.cli.output.console import align_columns, fit_columns, indented
from peagle.cli.output.image import image_table
from peagle.images import Image
from tests.unit.cli.commands import FIRST, NAME, Terminal

WIDTH = 60
CATALOG = load_catalog()


@pytest.fixture
def narrow(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    return terminal


def _words(text: str) -> set[str]:
    return set(text.split())


def test_the_catalogue_has_one_line_for_each_pair(narrow: Terminal) -> None:
    shown = narrow.run("catalog", "list").out

    rows = [line for line in shown.splitlines() if re.match(r"[* ]  \S+\+\S+ ", line)]
    assert len(rows) == sum(len(CATALOG.targets[name].drafters) for name in CATALOG.targets)
    assert max(map(len, rows)) <= WIDTH
    assert {"unverified", "gemma-4-31b+eagle3-thoughtworks"} <= _words(shown)


def test_compared_plans_stand_one_below_the_other(narrow: Terminal) -> None:
    pairs = ("gpt-oss-20b", "qwen3-8b")
    first, second = (narrow.run("plan", pair, "--json").document for pair in pairs)

    shown = narrow.run("plan", pairs[0], "--compare", pairs[1]).out

    assert max(map(len, shown.splitlines())) <= WIDTH
    assert f"*  drafter\n   A  {first['drafter']['id']}\n   B  {second['drafter']['id']}" in shown
    assert f"   instance\n      1 x {first['instance_type']}\n" in shown
    assert {first["target"]["id"], second["target"]["id"]} <= _words(shown)


@pytest.mark.thorough
def test_a_verdict_folds(narrow: Terminal) -> None:
    shown = narrow.run("verdict", "gpt-oss-20b", "--gpu", "H100").out

    assert max(map(len, shown.splitlines())) <= WIDTH
    assert "Hidden columns (terminal too narrow): TTFT" in shown
    assert "% slower than the best at (* for all loads)" in shown


@pytest.mark.thorough
def test_a_plan_breaks_no_name(narrow: Terminal) -> None:
    for pair in ("qwen3-8b", "gpt-oss-120b"):
        plan = narrow.run("plan", pair, "--json").document
        shown = narrow.run("plan", pair, "--verbose").out

        places = [place["instance_type"] for place in plan["alternatives"]]
        assert {plan["runtime"]["image"], *places} <= _words(shown)


def test_a_plans_facts_continue_below_their_first_word(narrow: Terminal) -> None:
    shown = narrow.run("plan", "gpt-oss-20b", "--verbose").out.splitlines()

    (first,) = (line for line in shown if line.lstrip().startswith("fits"))
    indent = len(first) - len(first.lstrip())
    following = shown[shown.index(first) + 1]
    assert indent == len("GPU memory  ")
    assert following.startswith(" " * indent)
    assert "requests of 32,768 tokens" in " ".join((first, following)).replace("  ", " ").replace(
        " " * indent, ""
    )


def test_check_folds_and_breaks_no_address(narrow: Terminal) -> None:
    shown = narrow.run("check", "qwen3-8b").out

    assert "(https://github.com/vllm-project/vllm/pull/44816)" in shown
    texts = [line for line in shown.splitlines() if not line.startswith("read")]
    assert max(map(len, texts)) <= WIDTH


def test_the_rules_break_no_code(narrow: Terminal) -> None:
    shown = narrow.run("check", "--rules").out

    codes = {rule["code"] for rule in narrow.run("check", "--rules", "--json").document["rules"]}
    assert codes <= _words(shown)


@pytest.mark.thorough
def test_the_list_says_which_columns_it_leaves_out(narrow: Terminal) -> None:
    assert narrow.run(*FIRST, "--yes").code == 0

    done = narrow.run("list")

    assert {NAME, "InService", "NAME", "STATE", "USD/HOUR"} <= _words(done.out)
    assert max(map(len, done.out.splitlines())) <= WIDTH
    assert "Hidden columns (terminal too narrow): PAIR" in done.err


@pytest.mark.thorough
def test_the_doctor_folds(narrow: Terminal) -> None:
    shown = narrow.run("doctor").out

    longest = max(shown.split(), key=len)
    assert max(map(len, shown.splitlines())) <= max(WIDTH, len(longest) + 3)


def test_the_plan_before_the_question_folds(
    narrow: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peagle.cli.output.console.stderr_width", lambda: WIDTH)

    shown = narrow.run(*FIRST, answers="n\n").err

    facts = shown[: shown.index("Deploy this plan?")]
    too_long = [line for line in facts.splitlines() if len(line) > WIDTH]
    assert [line for line in too_long if len(line.split()) > 2] == []  # label and word
    assert "proof       at least 100 drafts" in facts


@pytest.mark.thorough
def test_status_folds(narrow: Terminal) -> None:
    assert narrow.run(*FIRST, "--yes").code == 0

    shown = narrow.run("status", NAME).out

    too_long = [line for line in shown.splitlines() if len(line) > WIDTH]
    assert [line for line in too_long if len(line.split()) > 1 and "http" not in line] == []


def test_images_lose_columns() -> None:
    image = Image(
        name="peagle-gpt-oss-20b:0.28.0-gpu-3f2a9c1b7d20", id="sha256:0", size=5_000_000,
        created="2026-11-01T00:00:00Z", layer_bytes=None, user="10001", digests=(),
        labels={"peagle.pair": "openai/gpt-oss-20b+amazon/head", "peagle.runtime": "gpu"},
    )  # fmt: skip
    lines = [*image_table([image], WIDTH)]

    assert "peagle-gpt-oss-20b:0.28.0-gpu-3f2a9c1b7d20" in lines[1]
    assert max(map(len, lines[:2])) <= WIDTH


def test_what_fits_is_left_as_it_is() -> None:
    rows = [("NAME", "SIZE"), ("a", "10")]

    assert fit_columns(rows, 10, ("SIZE",)) == (rows, ())
    assert fit_columns(rows, 9, ("SIZE",)) == ([("NAME",), ("a",)], ("SIZE",))
    assert [*align_columns(rows, {"SIZE"})] == ["NAME  SIZE", "a       10"]


def test_a_word_that_is_too_long_stays_whole() -> None:
    assert indented("see https://example.com/a-b-c now", 10, 2) == (
        "see\n  https://example.com/a-b-c\n  now"
    )
