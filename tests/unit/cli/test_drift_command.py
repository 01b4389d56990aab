"""``peagle drift``: its plan, its table and its exit codes."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.aws.cloud import ROLE
from tests.unit.cli.commands import NAME, Terminal, without_record

FILE = """\
environments: {staging: {tag: {team: a}}}
endpoints: {chat: {pair: tiny, instance_type: %s}}
"""
COPIES = ("deploy", "tiny", "--instance-type", "ml.g5.12xlarge", "--copies", "4", "--yes")
SCALED = (*COPIES, "--max-instances", "3")
TO_ZERO = (*COPIES, "--max-instances", "2", "--scale-to-zero")


@pytest.fixture
def project(terminal: Terminal, tmp_path: Path) -> Path:
    """A project file, deployed."""
    path = tmp_path / "peagle.yaml"
    path.write_text(FILE % "ml.g5.xlarge", encoding="utf-8")
    terminal.succeeds("deploy", "--project", str(path), "-e", "staging", "--yes")
    return path


@pytest.mark.thorough
def test_an_edited_project_file_is_drift(terminal: Terminal, project: Path) -> None:
    at = ("drift", "--project", str(project), "-e", "staging")
    assert terminal.run(*at).code == 0
    project.write_text(FILE.replace("team: a", "team: b") % "ml.g6.xlarge", encoding="utf-8")
    done = terminal.run(*at, "--json")
    assert done.code == 3
    drifts = {
        field["field"]: (field["planned"], field["found"]) for field in done.document["fields"]
    }
    assert drifts.pop("configuration.instance_type") == ("ml.g6.xlarge", "ml.g5.xlarge")
    assert {name for name in drifts if name.startswith("tags")} == {
        "tags.Endpoint.team", "tags.EndpointConfig.team", "tags.Model.team",
    }  # fmt: skip


def test_what_cannot_be_read_is_exit_4(deployed: Terminal) -> None:
    deployed.rejects("describe_scalable_targets", "AccessDenied")
    done = deployed.run("drift", NAME)
    assert done.code == 4
    assert "scaling is unknown: " in done.err


def test_without_a_plan_on_this_machine_one_must_be_named(deployed: Terminal) -> None:
    without_record(deployed)
    done = deployed.run("drift", NAME)
    assert done.code == 2
    assert f"the plan of {NAME} is not on this machine" in done.error


def with_copies(terminal: Terminal, words: tuple[str, ...], running: int) -> None:
    """Deploy copies, of which scaling then chose this number."""
    terminal.cloud.quotas["ml.g5.12xlarge for endpoint usage"] = 4
    terminal.succeeds(*words)
    terminal.cloud.components[NAME].parameters["RuntimeConfig"]["CopyCount"] = running


def fields(terminal: Terminal) -> dict[str, tuple[Any, Any]]:
    """What drift finds of the deployment: planned and found, by field."""
    drifts = terminal.run("drift", NAME, "--json").document["fields"]
    return {drift["field"]: (drift["planned"], drift["found"]) for drift in drifts}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "running"), [(COPIES, 4), (SCALED, 4), (SCALED, 9), (TO_ZERO, 0), (TO_ZERO, 8)]
)
def test_copies_within_the_bounds_of_scaling_are_no_drift(
    terminal: Terminal, words: tuple[str, ...], running: int
) -> None:
    with_copies(terminal, words, running)
    assert fields(terminal) == {}


@pytest.mark.thorough
@pytest.mark.parametrize(("words", "running"), [(COPIES, 3), (SCALED, 3), (SCALED, 13)])
def test_another_number_of_copies_than_scaling_chooses_is_drift(
    terminal: Terminal, words: tuple[str, ...], running: int
) -> None:
    with_copies(terminal, words, running)
    assert fields(terminal) == {"endpoint.copies": (4, running)}


@pytest.mark.thorough
def test_the_role_of_the_project_file_is_the_planned_one(terminal: Terminal, project: Path) -> None:
    other = terminal.cloud.add_role("chat").arn
    text = project.read_text(encoding="utf-8")
    project.write_text(text.replace("{pair: tiny,", "{pair: tiny, role: chat,"), encoding="utf-8")
    at = ("drift", "--project", str(project), "-e", "staging", "--json")
    drifts = [
        drift for drift in terminal.run(*at).document["fields"] if drift["field"] == "model.role"
    ]
    assert drifts == [{"field": "model.role", "planned": other, "found": ROLE}]
    assert terminal.run(*at, "--role", ROLE).code == 0
