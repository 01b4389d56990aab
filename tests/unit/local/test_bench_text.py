"""``peagle bench NAME --acceptance`` and ``--lossless`` of a local engine: output, exit codes."""

import json
from pathlib import Path

import pytest

from peagle.engine.local import start_local
from tests.support import Done, in_process
from tests.unit.local.conftest import NAME, PlanFor

pytestmark = pytest.mark.thorough
PROMPTS = (
    {"prompt": "def f(x):", "domain": "code", "id": 7},
    {"prompt": "class Stack:", "domain": "code"},
    {"messages": [{"role": "user", "content": "Hi"}], "domain": "chat"},
)
TABLE = """\
Acceptance of stand-in with K=2: measured on 3 prompts, from the engine's counters
DOMAIN       LENGTH  95 % INTERVAL  DRAFTS  PROMPTS  TOKENS     1     2
code           2.50   2.50 to 2.50       4        2      16  1.00  0.50
chat           2.50        unknown       2        1       8  1.00  0.50
all domains    2.50   2.50 to 2.50       6        3      24  1.00  0.50
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, PROMPTS)))
    return path


def bench(*options: object) -> Done:
    return in_process("bench", NAME, *map(str, options))


def test_json_is_one_document_and_the_file_holds_the_acceptance(
    engine_home: Path, plan_for: PlanFor, file: Path, tmp_path: Path
) -> None:
    start_local(plan_for())
    saved = tmp_path / "acceptance.json"
    done = bench("--acceptance", file, "--save-acceptance", saved, "--json")
    assert done.code == 0, done.err
    assert done.document["lossless"] is None
    assert done.document["acceptance"] == json.loads(saved.read_text())
    assert done.document["acceptance"]["total"]["acceptance"]["drafts"] == 6
    assert "peagle verdict cannot use this file" in done.err


def test_a_server_that_returns_no_tokens_cannot_be_compared(
    engine_home: Path, plan_for: PlanFor, file: Path
) -> None:
    start_local(plan_for())
    done = bench("--acceptance", file, "--lossless")
    assert done.code == 3
    assert done.out == TABLE, "the acceptance is kept"
    assert "the server does not return tokens" in done.error
