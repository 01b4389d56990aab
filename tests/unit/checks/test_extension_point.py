"""A rule is one file: ``peagle check`` finds it without a change elsewhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from peagle.checks import rules, rules_found
from peagle.cli.main import cli

RULE = '''"""A pair drafts no more than three tokens.

The test of the extension point.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule

RULE = Rule("more-than-three", about="load", vllm_notices="never")


def check(case: Case) -> Findings:
    if case.k > 3:
        yield RULE.error("k", f"K is {case.k}", "use --k 3")
'''


@pytest.fixture
def rule_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path of the package of rules, with one rule of its own."""
    (tmp_path / "more_than_three.py").write_text(RULE)
    monkeypatch.setattr(rules, "__path__", [*rules.__path__, str(tmp_path)])
    rules_found.cache_clear()
    yield tmp_path
    rules_found.cache_clear()
    sys.modules.pop(f"{rules.__name__}.more_than_three", None)


def test_a_new_rule_is_one_file(rule_folder: Path) -> None:
    refused = CliRunner().invoke(cli, ["check", "tiny", "--k", "4", "--json"])
    assert refused.exit_code == 3
    codes = [finding["code"] for finding in json.loads(refused.stdout)["findings"]]
    assert codes == ["more-than-three"]
    assert CliRunner().invoke(cli, ["check", "tiny", "--k", "3"]).exit_code == 0
    listed = CliRunner().invoke(cli, ["check", "--rules", "--json"])
    (rule,) = [r for r in json.loads(listed.stdout)["rules"] if r["code"] == "more-than-three"]
    assert rule["guards"] == "A pair drafts no more than three tokens."


def test_a_plan_is_refused_by_the_new_rule_too(rule_folder: Path) -> None:
    refused = CliRunner().invoke(cli, ["plan", "tiny", "--k", "4", "--json"])
    codes = [finding["code"] for finding in json.loads(refused.stdout)["findings"]]
    assert "more-than-three" in codes
