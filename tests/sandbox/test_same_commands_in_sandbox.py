"""The lines of ``tests/golden/commands/sandbox.txt`` end as recorded: see
``tests/unit/cli/test_same_commands.py``."""

from __future__ import annotations

import pytest

from tests.golden.commands import RUNS, outline, recorded
from tests.golden.commands.workplace import Workplace
from tests.sandbox.sandboxes import Sandbox

RECORDED = recorded(RUNS)

pytestmark = pytest.mark.sandbox


def test_command_lines_against_the_sandbox_end_as_they_did(
    sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory
) -> None:
    workplace = Workplace(tmp_path_factory.mktemp("workplace"), sandbox.settings)
    lost = {}
    for line, kept in RECORDED["sandbox"].items():
        before = outline.with_shared(line, kept, RECORDED["shared"])
        lost[line] = outline.losses(before, workplace.outline(line))
    assert {line: found for line, found in lost.items() if found} == {}
