"""The lines of ``tests/golden/commands/sandbox.txt`` end as recorded: see
``tests/unit/cli/test_same_commands.py``."""

import pytest

from tests.golden.commands import RUNS, first, outline, recorded
from tests.golden.commands.workplace import Workplace
from tests.sandbox.sandboxes import Sandbox

RECORDED = recorded(RUNS)
pytestmark = pytest.mark.sandbox


def test_command_lines_against_the_sandbox_end_as_they_did(
    sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory
) -> None:
    workplace = Workplace(tmp_path_factory.mktemp("workplace"), sandbox.settings)
    lost, lost_since_first = {}, {}
    for line in RECORDED["sandbox"]:
        now, _ = workplace.outline(line)
        lost[line] = outline.losses_since(RECORDED, "sandbox", line, now)
        lost_since_first[line] = first.unexpected("sandbox", line, now)
    assert {line: lines for line, lines in lost.items() if lines} == {}
    assert {line: lines for line, lines in lost_since_first.items() if lines} == {}
