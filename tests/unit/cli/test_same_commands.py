"""Every command, option, exit code and JSON key that users had still works.

What counts is recorded in ``tests/golden/commands``: the interface of every command, and how each
line of ``commands.txt`` and ``sandbox.txt`` ends. Additions are fine. What goes or changes is a
failure: scripts of users rest on it. Sentences for people are not recorded.

A new command, option or line is recorded with ``python -m tests.golden.commands``, which writes
everything again from the current code: review the diff before committing. The first recording
stays: what ends in another way than at first stands in ``first_changes.json`` with the reason.
"""

from __future__ import annotations

import pytest

from tests.golden.commands import INTERFACE, RUNS, command_lines, first, outline, recorded
from tests.golden.commands.interface import interface, losses
from tests.golden.commands.workplace import Workplace

COMMANDS = recorded(INTERFACE)
RECORDED = recorded(RUNS)
RETIRED_COMMANDS = {"peagle image list", "peagle image show", "peagle image remove"}
RETIRED = (
    ["FORMAT: choices no longer have boto3"],
    ["--instances: is gone", "--quotas: is gone"],
    [
        "--gpu-memory-gib: type was 'float', is 'float range'",
        "--gpu-memory-utilization: type was 'float', is 'float range'",
    ],
)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """The folder in which the lines of ``commands.txt`` run."""
    place = Workplace(tmp_path_factory.mktemp("workplace"))
    place.furnish()
    return place


def test_every_command_accepts_all_earlier_options() -> None:
    commands = interface()
    for earlier in (COMMANDS, first.FIRST["interface"]):
        kept = {*earlier} - RETIRED_COMMANDS
        assert kept <= {*commands}
        lost = {name: losses(earlier[name], commands[name]) for name in kept}
        assert {name: gone for name, gone in lost.items() if gone and gone not in RETIRED} == {}


@pytest.mark.parametrize("line", RECORDED["commands"])
def test_command_line_ends_as_before(workplace: Workplace, line: str) -> None:
    now = workplace.outline(line)
    assert outline.losses_since(RECORDED, "commands", line, now) == []
    assert first.unexpected("commands", line, now) == []


def test_every_line_is_recorded() -> None:
    assert list(RECORDED["commands"]) == list(command_lines("commands.txt"))
    assert list(RECORDED["sandbox"]) == list(command_lines("sandbox.txt"))
    for kind in ("commands", "sandbox"):
        assert {*first.FIRST[kind]} <= {*RECORDED[kind]}
    assert {*first.CHANGES} <= {*first.FIRST["commands"], *first.FIRST["sandbox"]}
