"""``peagle catalog list | show | check``, as a user types them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from peagle.catalog import load_catalog
from peagle.cli.main import cli
from peagle.errors import CatalogError, NotFound
from tests.unit.catalog.catalog_files import GOOD, write_target


def peagle(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def answer(*arguments: str) -> Any:
    result = peagle(*arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_list_has_every_drafter_of_every_target() -> None:
    listed = {
        (target["id"], drafter["name"])
        for target in answer("catalog", "list", "--json")["targets"]
        for drafter in target["drafters"]
    }

    targets = load_catalog().targets.values()
    assert listed == {(target.id, d.name) for target in targets for d in target.drafters}


def test_list_says_of_a_pair_what_to_choose_by() -> None:
    targets = answer("catalog", "list", "--json")["targets"]
    (target,) = [target for target in targets if target["short_name"] == "gpt-oss-20b"]

    assert target["default_drafter"] == "p-eagle"
    assert target["licence"] == "apache-2.0"
    expected = {
        "name": "p-eagle",
        "pair": "openai/gpt-oss-20b+amazon/GPT-OSS-20B-P-EAGLE",
        "kind": "P-EAGLE",
        "k_recommended": 7,
        "k_trained": 10,
        "min_vllm": "0.18.0",
        "licence": "apache-2.0",
        "verified": False,
        "evidence": [],
    }
    assert {key: target["drafters"][0][key] for key in expected} == expected


def test_list_shows_evidence_where_there_is_some(tmp_path: Path) -> None:
    write_target(tmp_path)
    (tmp_path / "evidence").mkdir()
    measured = {
        "pair": "acme/chat-7b",
        "date": "2026-11-20",
        "device": "one H200",
        "engine": {"version": "0.28.0"},
        "results": [{"drafter": "p-eagle", "k": 5, "acceptance_length": 2.61}],
    }
    (tmp_path / "evidence" / "chat.json").write_text(json.dumps(measured))

    listed = peagle("--catalog", str(tmp_path), "catalog", "list").stdout
    shown = answer("--catalog", str(tmp_path), "catalog", "show", "chat-7b", "--json")

    (line,) = [line for line in listed.splitlines() if " chat-7b+p-eagle " in line]
    assert "2.61 at K=5" in line
    assert shown["verified"] is True
    assert shown["evidence"][0]["acceptance_length"] == 2.61


def test_an_own_catalogue_may_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_target(tmp_path)
    monkeypatch.setenv("PEAGLE_CATALOG", str(tmp_path))

    assert answer("catalog", "show", "chat-7b", "--json")["target"]["id"] == "acme/chat-7b"


def test_show_gives_the_whole_entry() -> None:
    shown = answer("catalog", "show", "gpt-oss-20b+eagle3", "--json")

    assert shown["pair"] == "openai/gpt-oss-20b+RedHatAI/gpt-oss-20b-speculator.eagle3"
    assert shown["target"]["architecture"]["layers"] == 24
    assert shown["drafter"]["published"][0]["source"] == "vllm.ai/blog/p-eagle"
    assert shown["verified"] is False
    assert Path(shown["file"]).name == "gpt-oss-20b.yaml"


@pytest.mark.thorough
@pytest.mark.parametrize("target", load_catalog().targets)
def test_show_works_for_every_target(target: str) -> None:
    for drafter in load_catalog().targets[target].drafters:
        assert drafter.title in peagle("catalog", "show", f"{target}+{drafter.name}").stdout


def test_an_unknown_pair_is_not_found() -> None:
    result = peagle("catalog", "show", "gpt-oss-21b")

    assert isinstance(result.exception, NotFound)
    assert "did you mean gpt-oss-20b" in str(result.exception)


@pytest.mark.thorough
def test_check_is_content_with_what_ships() -> None:
    result = peagle("catalog", "check")

    assert result.exit_code == 0
    assert result.stdout == ""
    assert "files checked, no problems" in result.stderr
    assert answer("catalog", "check", "--json")["problems"] == []


def test_check_lists_everything_that_is_wrong_with_a_folder(tmp_path: Path) -> None:
    write_target(tmp_path, GOOD.replace("k_trained: 8", "k_trained: ten"))
    write_target(
        tmp_path,
        GOOD.replace("id: acme/chat-7b", "id: acme/other").replace(
            "short_name: chat-7b", "short_name: other"
        ),
        place="acme/chat-8b",
    )

    result = peagle("catalog", "check", str(tmp_path))

    assert result.exit_code == 2
    first, second = result.stdout.splitlines()
    assert "chat-7b.yaml:29: drafters[0].k_trained: " in first
    assert "chat-8b.yaml:1: id: expected acme/chat-8b, the path" in second
    assert "2 problems" in result.stderr


def test_check_says_that_nothing_is_read_from_a_file_without_measurements(tmp_path: Path) -> None:
    path = tmp_path / "speeds.json"
    path.write_text('{"pair": "openai/gpt-oss-20b", "speed": []}')

    result = peagle("catalog", "check", str(path))

    assert result.exit_code == 0
    assert "the catalogue ignores the file" in result.stderr


@pytest.mark.parametrize(
    "command",
    [("check", "plan.json"), ("fit", "plan.json"), ("catalog", "show", "./plan.json")],
)
def test_a_plan_file_in_the_place_of_a_pair_is_named_as_one(command: Sequence[str]) -> None:
    result = peagle(*command)

    assert isinstance(result.exception, NotFound)
    assert "plan.json' is a plan file" in result.exception.message


def test_check_of_one_file_answers_in_json_too(tmp_path: Path) -> None:
    path = write_target(tmp_path, GOOD.replace("parallel_drafting: true", "parallel_drafting: yes"))

    result = peagle("catalog", "check", str(path), "--json")

    assert result.exit_code == 2
    assert json.loads(result.stdout) == {
        "files": 1,
        "problems": [
            {
                "file": str(path),
                "line": 26,
                "key": "drafters[0].parallel_drafting",
                "message": 'should be a valid boolean, and is "yes"',
                "fix": "",
            }
        ],
    }


def test_check_takes_several_files_and_folders(tmp_path: Path) -> None:
    wrong = write_target(tmp_path, GOOD.replace("k_trained: 8", "k_trained: ten"))
    good = write_target(tmp_path / "second", GOOD)

    checked = peagle("catalog", "check", str(good), str(wrong), str(wrong))
    folder = peagle("catalog", "check", str(good), str(good.parents[1]))

    assert (checked.exit_code, folder.exit_code) == (2, 0)
    assert "2 files checked, 1 problem" in checked.stderr
    (problem,) = checked.stdout.splitlines()
    assert "chat-7b.yaml:29: drafters[0].k_trained" in problem
    assert f"1 of them in {good.parents[1]}, no problems" in folder.stderr


def test_a_problem_of_one_file_does_not_hide_that_another_has_no_results(tmp_path: Path) -> None:
    wrong = write_target(tmp_path, GOOD.replace("k_trained: 8", "k_trained: ten"))
    empty, broken = tmp_path / "empty.json", tmp_path / "broken.json"
    empty.write_text("{}", encoding="utf-8")
    broken.write_text("{", encoding="utf-8")

    result = peagle("catalog", "check", str(wrong), str(broken), str(empty))

    assert result.exit_code == 2
    assert f"{empty} has no results, speeds or starts" in result.stderr
    assert f"{broken} has no results" not in result.stderr


def test_check_of_a_place_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    result = peagle("catalog", "check", str(tmp_path / "nothing"))

    assert result.exit_code == 2
    assert "does not exist" in result.stderr


def test_a_wrong_own_file_stops_what_needs_it_and_nothing_else(tmp_path: Path) -> None:
    write_target(tmp_path, GOOD.replace("k_trained: 8", "k_trained: ten"))

    wrong = peagle("--catalog", str(tmp_path), "catalog", "show", "chat-7b")
    right = peagle("--catalog", str(tmp_path), "catalog", "show", "tiny")

    assert isinstance(wrong.exception, CatalogError)
    assert right.exit_code == 0
