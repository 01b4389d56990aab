"""A list reads a part of each file, and says the same as if it had read all of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from peagle.catalog import find as module
from peagle.catalog import load_catalog
from peagle.catalog.find import TargetGlance, glance_at_targets, glance_of
from peagle.catalog.loading import read_target
from peagle.catalog.schema import Drafter, Target
from peagle.errors import CatalogError
from tests.unit.catalog.catalog_files import GOOD, write_target

AT_COLUMN_0 = re.sub(
    r"^  ", "", GOOD.partition("drafters:\n")[2].partition("proof:")[0], flags=re.M
)
FLOW = """\
drafters:
  - {name: p-eagle, title: A head, method: eagle3, parallel_drafting: true,
     source: the card, weights: acme/head,
     min_vllm: "0.22.0", k_recommended: 5}
"""
MIXED = """\
drafters:

  # the first
  - name: ngram
    title: n-gram
    method: ngram
    min_vllm: "0.20.0"
    k_recommended: 4
    source: the documentation
""" + FLOW.partition("\n")[2]


def in_place_of_drafters(text: str) -> str:
    """The good file with other drafters."""
    before, _, rest = GOOD.partition("drafters:\n")
    return before + text + "proof:" + rest.partition("proof:")[2]


STYLES = {
    "as it is": GOOD,
    "drafters at column 0": in_place_of_drafters("drafters:\n" + AT_COLUMN_0),
    "drafters in braces": in_place_of_drafters(FLOW),
    "some drafters in braces": in_place_of_drafters(MIXED),
    "long parts first": "source: >-\n  a card\n\n  of two parts\n"
    + GOOD.replace("\nsource: the card\n", "\n"),
    "a bracket at column 0": GOOD.replace("  prompts: [Hello]\n", "  prompts: [\n  Hello,\n]\n"),
    "a brace at column 0": GOOD.replace(
        "proof:\n  prompts: [Hello]", "proof: {\n  prompts: [Hello],\n}"
    ),
    "comments between": GOOD.replace("default_drafter", "# a remark\n\ndefault_drafter"),
    "a comment inside": GOOD.replace("  layers: 32\n", "  layers: 32\n# a remark\n"),
    "other line ends": GOOD.replace("\n", "\r\n"),
    "no end of line": GOOD.rstrip("\n"),
    "an anchor in a long part": GOOD.replace("source: the card\nproof", "proof")
    .replace("source: the card\n  - name", "source: &card the card\n  - name")
    .replace("title: Acme Chat 7B", "title: Acme Chat 7B"),
    "an alias of a long part": "source: &card the card\n"
    + GOOD.replace("\nsource: the card\n", "\n").replace("title: Acme Chat 7B", "title: *card"),
    "a folded title": GOOD.replace("title: Acme Chat 7B", "title: >-\n  Acme\n  Chat"),
    "words that look like keys": GOOD.replace(
        "title: n-gram", "title: >-\n      n-gram with\n      published: numbers"
    ),
    "the short name last": GOOD.replace("short_name: chat-7b\n", "")
    + "# x" * 2000
    + "\nshort_name: chat-7b\n",
}  # fmt: skip


STYLES |= {
    f"a title such as {title}": GOOD.replace("title: Acme Chat 7B", f"title: {title}")
    for title in (
        '"Acme # Chat"', "'Acme: Chat'", "Acme#Chat  # and more", "Acme:Chat  ", "'it''s Acme'",
        '"Acme \\"Chat\\""', "Ünï Chat", "Acme\n  Chat", '"Acme\n  Chat"', '"12"', "|\n  a\n  b",
    )
}  # fmt: skip


@pytest.mark.parametrize("style", STYLES)
def test_it_is_what_the_whole_file_says(style: str, tmp_path: Path) -> None:
    path = write_target(tmp_path, STYLES[style])
    whole = glance_of(read_target(path))

    (found,) = (one for one in glance_at_targets(tmp_path) if one.id == "acme/chat-7b")

    assert found.model_copy(update={"drafters": ()}) == whole.model_copy(update={"drafters": ()})
    assert [d.name for d in found.drafters] == [d.name for d in whole.drafters]
    if style != "words that look like keys":
        assert found == whole


def test_the_bundled_catalogue_is_listed_as_it_is() -> None:
    assert list(glance_at_targets()) == [glance_of(t) for t in load_catalog().targets.values()]


def test_the_bundled_files_need_no_second_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "read_target", lambda path: pytest.fail(f"{path} was read whole"))

    assert len(list(glance_at_targets())) == len(load_catalog().targets)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("k_trained: 8", "k_trained: ten"),
        ("id: acme/chat-7b", "id: acme/other"),
        ("default_drafter: p-eagle", "default_drafter: nobody"),
        ("name: ngram", "name: p-eagle"),
        ("licence: apache-2.0", "license: apache-2.0"),
        ("method: ngram", "method: magic"),
        ("short_name: chat-7b", "short_name: [chat"),
        ("title: Acme Chat 7B", "title: Acme: Chat"),
        ("title: Acme Chat 7B", "title: 7"),
        ("title: Acme Chat 7B", "title: Acme\x1b[31m"),
        ("title: Acme Chat 7B", "title: Acme\ntitle: Chat"),
        ("title: Acme Chat 7B", "title: Acme\n  licence: mit"),
        ("  - name: ngram", " - name: ngram"),
        ("    title: n-gram", "     title: n-gram"),
    ],
)
def test_what_a_list_needs_must_be_right(old: str, new: str, tmp_path: Path) -> None:
    write_target(tmp_path, GOOD.replace(old, new))

    with pytest.raises(CatalogError, match=r"chat-7b\.yaml"):
        list(glance_at_targets(tmp_path))


def test_the_rest_is_looked_at_when_it_is_needed(tmp_path: Path) -> None:
    path = write_target(tmp_path, GOOD.replace("hidden_size: 4096", "hidden_size: big"))

    assert any(found.id == "acme/chat-7b" for found in glance_at_targets(tmp_path))
    with pytest.raises(CatalogError, match="hidden_size"):
        read_target(path)


def test_a_short_name_that_two_have_is_told(tmp_path: Path) -> None:
    write_target(tmp_path)
    write_target(tmp_path, GOOD.replace("id: acme/chat-7b", "id: acme/other"), place="acme/other")

    with pytest.raises(CatalogError, match="already the short name"):
        list(glance_at_targets(tmp_path))


def test_the_fields_are_those_of_the_models() -> None:
    assert set(TargetGlance.model_fields) <= set(Target.model_fields)
    assert set(module.DrafterGlance.model_fields) <= set(Drafter.model_fields)
