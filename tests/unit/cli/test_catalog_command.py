"""``peagle catalog list | show | check``, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from peagle.catalog import load_catalog
from peagle.cli.main import cli
from peagle.errors import CatalogError
from tests.unit.catalog.catalog_files import GOOD, write_target


def peagle(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def answer(*arguments: str) -> Any:
    result = peagle(*arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.thorough
@pytest.mark.parametrize("target", load_catalog().targets)
def test_show_works_for_every_target(target: str) -> None:
    for drafter in load_catalog().targets[target].drafters:
        assert drafter.title in peagle("catalog", "show", f"{target}+{drafter.name}").stdout


@pytest.mark.thorough
def test_check_is_content_with_what_ships() -> None:
    result = peagle("catalog", "check")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "problems: 0" in result.stderr
    assert answer("catalog", "check", "--json")["problems"] == []


def test_check_says_that_nothing_is_read_from_a_file_without_measurements(tmp_path: Path) -> None:
    path = tmp_path / "speeds.json"
    path.write_text('{"pair": "openai/gpt-oss-20b", "speed": []}')
    result = peagle("catalog", "check", str(path))
    assert result.exit_code == 0
    assert "the catalogue ignores the file" in result.stderr


def test_check_takes_several_files_and_folders(tmp_path: Path) -> None:
    wrong = write_target(tmp_path, GOOD.replace("k_trained: 8", "k_trained: ten"))
    good = write_target(tmp_path / "second", GOOD)
    checked = peagle("catalog", "check", str(good), str(wrong), str(wrong))
    assert checked.exit_code == 2
    assert "files checked: 2, problems: 1" in checked.stderr
    (problem,) = checked.stdout.splitlines()
    assert "chat-7b.yaml:29: drafters[0].k_trained" in problem


def test_a_problem_of_one_file_does_not_hide_that_another_has_no_results(tmp_path: Path) -> None:
    wrong = write_target(tmp_path, GOOD.replace("k_trained: 8", "k_trained: ten"))
    empty, broken = tmp_path / "empty.json", tmp_path / "broken.json"
    empty.write_text("{}", encoding="utf-8")
    broken.write_text("{", encoding="utf-8")
    result = peagle("catalog", "check", str(wrong), str(broken), str(empty))
    assert result.exit_code == 2
    assert f"{empty} has no results, speeds or starts" in result.stderr
    assert f"{broken} has no results" not in result.stderr


def test_a_wrong_own_file_stops_what_needs_it_and_nothing_else(tmp_path: Path) -> None:
    write_target(tmp_path, GOOD.replace("k_trained: 8", "k_trained: ten"))
    wrong = peagle("--catalog", str(tmp_path), "catalog", "show", "chat-7b")
    right = peagle("--catalog", str(tmp_path), "catalog", "show", "tiny")
    assert isinstance(wrong.exception, CatalogError)
    assert right.exit_code == 0
