"""Every command, option, exit code and JSON key that users had still works.

What counts is recorded in ``tests/golden/commands``: the interface of every command, and how each
line of ``commands.txt`` and ``sandbox.txt`` ends. Additions are fine. What goes or changes is a
failure: scripts of users rest on it. ``messages.json`` has the words of errors and findings, once
for each code, so that other tests assert codes.

A new command, option or line is recorded with ``python -m tests.golden.commands``, which writes
everything again from the current code: review the diff before committing. The first recording
stays: what ends in another way than at first stands in ``first_changes.json`` with the reason.
"""

import pytest

from peagle.options import read_flags
from tests.golden.commands import INTERFACE, MESSAGES, RUNS, command_lines, first, outline, recorded
from tests.golden.commands.interface import interface, losses
from tests.golden.commands.workplace import Workplace

KEYS_OF_FILE = [name for name, flag in read_flags() if flag.in_file] + ["max_price_increase"]
COMMANDS = recorded(INTERFACE)
RECORDED = recorded(RUNS)
WORDING = recorded(MESSAGES)
RETIRED_COMMANDS = {"peagle image list", "peagle image show", "peagle image remove"}
RETIRED = {
    "FORMAT: choices no longer have boto3",
    "--instances: is gone",
    "--quotas: is gone",
    "--gpu-memory-gib: type was 'float', is 'float range'",
    "--gpu-memory-utilization: type was 'float', is 'float range'",
    "-o: type was 'path', is 'directory'",
    "--output: type was 'path', is 'directory'",
    "--allow-unpinned-warm: is gone",  # an option of deploy alone
    "--take-over: is gone",  # of the lock of a prefix of weights, which has none
    *(f"--{key.replace('_', '-')}: is gone" for key in KEYS_OF_FILE),
}
MOST_OPTIONS = {"peagle plan": 50, "peagle deploy": 56}


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
        assert {name: {*gone} - RETIRED for name, gone in lost.items() if {*gone} - RETIRED} == {}


@pytest.mark.parametrize("name", MOST_OPTIONS)
def test_a_command_has_no_more_options_than_a_user_can_read(name: str) -> None:
    assert len(interface()[name]["options"]) <= MOST_OPTIONS[name]


@pytest.mark.parametrize("line", RECORDED["commands"])
def test_command_line_ends_as_before(workplace: Workplace, line: str) -> None:
    now, messages = workplace.outline(line)
    assert outline.losses_since(RECORDED, "commands", line, now) == []
    assert first.unexpected("commands", line, now) == []
    wording = {code: words for code, words in WORDING.items() if words["line"] == line}
    assert wording == {code: {"line": line, **messages.get(code, {})} for code in wording}


def test_every_line_is_recorded() -> None:
    assert list(RECORDED["commands"]) == list(command_lines("commands.txt"))
    assert list(RECORDED["sandbox"]) == list(command_lines("sandbox.txt"))
    for kind in ("commands", "sandbox"):
        assert {*first.FIRST[kind]} <= {*RECORDED[kind]}
    assert {*first.CHANGES} <= {*first.FIRST["commands"], *first.FIRST["sandbox"]}
