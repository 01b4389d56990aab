"""A rule is one function: ``peagle check`` finds it without a change elsewhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from peagle.checks import registry, rules
from peagle.cli.main import cli

RULE = '''
from peagle.case import Case
from peagle.checks.registry import Findings, error, rule


@rule("more-than-three", about="load", vllm_notices="never")
def more_than_three(case: Case) -> Findings:
    """A pair drafts no more than three tokens.

    The test of the extension point.
    """
    if case.k > 3:
        yield error("k", f"K is {case.k}", "use --k 3")
'''


@pytest.fixture
def rule_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path of the package of rules, with one rule of its own."""
    (tmp_path / "more_than_three.py").write_text(RULE)
    monkeypatch.setattr(rules, "__path__", [*rules.__path__, str(tmp_path)])
    yield tmp_path
    registry._RULES.pop("more-than-three", None)
    sys.modules.pop(f"{rules.__name__}.more_than_three", None)


def test_a_new_rule_is_one_function(rule_folder: Path) -> None:
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
