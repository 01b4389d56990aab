"""version_rules.yaml: validation, replacement by the user's file, and version ranges."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.catalog import load_catalog
from peagle.catalog.loading import check_catalog_file
from peagle.catalog.tables import applicable_rules
from peagle.errors import UserError
from peagle.vllm.versions import compare, in_range, parse
from tests.support import raises_code

GOOD = """\
checked: 2026-11-20
source: here
rules:
  - code: kv-group-rule
    vllm: <0.18.0
    level: error
    value: 1.25
    summary: it does not start
    fix: use a later one
    source: an issue
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "version_rules.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(("old", "new", "key"), [
    ("level: error", "level: fatal", "level"),
    ("vllm: <0.18.0", "vllm: before 0.18", "vllm"),
    ("    fix: use a later one\n", "", "fix"),
    ("value: 1.25", "ratio: 1.25", "ratio"),
    ("code: kv-group-rule", "code: KV group", "code"),
])  # fmt: skip
def test_wrong_entry_is_reported_with_its_key(tmp_path: Path, old: str, new: str, key: str) -> None:
    problems = check_catalog_file(written(tmp_path, GOOD.replace(old, new)))
    assert [problem.key for problem in problems][:1] == [f"rules[0].{key}"]
    assert problems[0].line is not None


@pytest.mark.parametrize("code", ["kv-group-rule", "placeholder-missing"])
def test_exactly_one_entry_applies_to_each_version(code: str) -> None:
    table = load_catalog().version_rules
    for minor in range(18, 34):
        assert len(applicable_rules(table, code, f"0.{minor}.0")) == 1


def test_an_entry_without_versions_applies_to_all(tmp_path: Path) -> None:
    written(tmp_path, GOOD.replace("    vllm: <0.18.0\n", ""))
    table = load_catalog(tmp_path).version_rules
    assert applicable_rules(table, "kv-group-rule", "0.30.0") == table.rules
    assert applicable_rules(table, "another", "0.30.0") == ()


# Versions of vLLM: parsing, order, and ranges.
NUMBERS = st.tuples(*[st.integers(min_value=0, max_value=10_000)] * 3)
VERSIONS = NUMBERS.map(lambda numbers: ".".join(map(str, numbers)))


@given(NUMBERS, NUMBERS)
def test_versions_are_ordered_by_number(
    left: tuple[int, int, int], right: tuple[int, int, int]
) -> None:
    sign = (left > right) - (left < right)
    assert compare(".".join(map(str, left)), ".".join(map(str, right))) == sign


@given(VERSIONS, VERSIONS)
def test_the_comparisons_of_a_range_agree_with_compare(version: str, bound: str) -> None:
    order = compare(version, bound)
    assert in_range(version, f"<{bound}") == (order < 0)
    assert in_range(version, f"<={bound}") == (order <= 0)
    assert in_range(version, f"=={bound}") == (order == 0)
    assert in_range(version, f">={bound}") == (order >= 0)
    assert in_range(version, f">{bound}") == (order > 0)


@pytest.mark.parametrize(
    "text", ["", "0", "v0.28.0", "0.28.0.1", "0.28.0+cpu", "0.28.x", "\u0660.28"]
)
def test_other_spellings_of_versions_are_refused(text: str) -> None:
    with raises_code("invalid-version", UserError) as refused:
        parse(text)
    assert refused.value.fix == "write it like 0.28.0"
