"""Every rule finds its broken cases, with its own code; good pairs get no error."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.catalog.schema import Drafter, Target
from peagle.checks import Case, check, rules_found
from tests.unit.checks.cases import (
    CATALOG,
    GEOMETRY,
    geometry_case,
    make_case,
    speculators_case,
    tiny_case,
)
from tests.unit.checks.corpus import Broken
from tests.unit.checks.corpus_heads import HEADS
from tests.unit.checks.corpus_rest import REST

CORPUS = (*HEADS, *REST)

PAIRS = [(target, drafter) for target in CATALOG.targets.values() for drafter in target.drafters]

GEOMETRIES = [(folder.name, head) for folder in sorted(GEOMETRY.iterdir()) if folder.is_dir()
              for head in ("p-eagle", "eagle3")]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("broken", CORPUS, ids=lambda broken: broken.name)
def test_a_broken_pair_gets_its_finding_and_no_other_error(broken: Broken, tmp_path: Path) -> None:
    findings = check(broken.make(tmp_path))
    found = {(finding.code, finding.level) for finding in findings}
    assert (broken.expected, broken.level) in found, findings
    errors = [finding.code for finding in findings if finding.level == "error"]
    assert errors == ([broken.expected] if broken.level == "error" else []), findings


def test_every_rule_is_in_the_corpus() -> None:
    rules = {rule.code for rule in rules_found()}
    assert {broken.code for broken in CORPUS} == rules


@pytest.mark.parametrize(
    ("target", "drafter"), PAIRS, ids=[f"{t.short_name}+{d.name}" for t, d in PAIRS]
)
def test_no_pair_of_the_catalogue_gets_an_error(target: Target, drafter: Drafter) -> None:
    case = make_case(CATALOG, target, drafter, region="us-east-1")
    assert errors(case) == []
    assert errors(make_case(CATALOG, target, None, region="us-east-1")) == []


@pytest.mark.parametrize(("short", "head"), GEOMETRIES)
def test_no_real_geometry_gets_an_error(short: str, head: str, tmp_path: Path) -> None:
    assert errors(geometry_case(tmp_path, short, head)) == []


@pytest.mark.parametrize("vllm", [runtime.vllm for runtime in CATALOG.runtimes.runtimes])
@pytest.mark.parametrize("head", ["p-eagle", "eagle3"])
def test_the_tiny_pair_gets_no_finding(head: str, vllm: str, tmp_path: Path) -> None:
    assert check(tiny_case(tmp_path, head=head, pair=f"tiny+{head}", vllm=vllm)) == ()


@pytest.mark.parametrize("kind", ["peagle", "eagle3"])
def test_the_speculators_format_gets_no_finding(kind: str, tmp_path: Path) -> None:
    pair = {"peagle": "tiny", "eagle3": "tiny+eagle3"}[kind]
    assert check(speculators_case(tmp_path, kind, pair=pair)) == ()


def errors(case: Case) -> list[str]:
    return [finding.code for finding in check(case) if finding.level == "error"]
