"""A target's file is written so that the catalogue loads the same target from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.catalog import load_catalog
from peagle.catalog.documents import Location, parse_document
from peagle.catalog.loading import validate_file
from peagle.catalog.schema import Target
from peagle.catalog.writing import entry_text
from peagle.errors import UserError
from tests.support import bundled_catalog

with bundled_catalog():
    TARGETS = dict(load_catalog().targets)
PUBLIC = [target for target in TARGETS.values() if not target.weights.startswith("./")]
ONE = PUBLIC[0]
SHORT = min(PUBLIC, key=lambda target: len(target.model_dump_json(exclude_defaults=True)))
"""The target with the shortest file."""


def data_of(text: str) -> dict[str, Any]:
    data: dict[str, Any] = parse_document(text, "file").data or {}
    return data


def file_of(target: Target) -> Path:
    return Path(f"{target.id}.yaml")


@pytest.mark.parametrize("target", PUBLIC, ids=lambda target: target.short_name)
def test_every_target_is_loaded_again_from_its_file(target: Target) -> None:
    text = entry_text(target, {}, {}, file_of(target))
    assert validate_file(file_of(target), Target, text) == (target, [])


@pytest.mark.thorough
@given(st.text(alphabet=st.characters(codec="utf-8"), min_size=1, max_size=30))
def test_any_title_is_loaded_again_or_refused(title: str) -> None:
    target = SHORT.model_copy(update={"title": title})
    try:
        text = entry_text(target, {}, {}, file_of(SHORT))
    except UserError:
        return
    assert data_of(text)["title"] == title


@pytest.mark.parametrize("value", ["no", "true", "null", "1.5", "0.28", "~", "a: b", "a #b", "- x"])
def test_text_that_looks_like_another_type_is_quoted(value: str) -> None:
    target = ONE.model_copy(update={"licence": value})
    text = entry_text(target, {}, {}, file_of(ONE))
    assert data_of(text)["licence"] == value


@pytest.mark.thorough
def test_comments_say_what_is_unknown() -> None:
    unknown: dict[Location, str] = {
        ("licence",): "see its card",
        ("dtype",): "the config does not say",
    }
    missing: dict[Location, str] = {("drafters", 0, "published"): "published, no claims"}
    target = ONE.model_copy(update={"dtype": "bfloat16"})
    lines = entry_text(target, unknown, missing, file_of(ONE)).splitlines()
    assert f"licence: {ONE.licence} # unknown: see its card" in lines
    assert "# unknown: dtype, the config does not say" in lines
    assert "    # unknown: published, no claims" in lines


@pytest.mark.thorough
def test_a_comment_cannot_add_a_key() -> None:
    text = entry_text(ONE, {("licence",): "x\ngated: true"}, {}, file_of(ONE))
    assert "gated" not in data_of(text)
