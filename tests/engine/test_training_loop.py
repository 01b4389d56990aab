"""The loop of docs/train.md: captured requests, a job that trains a head of them, a comparison, a
promotion.

Every command of the chapter's section runs, in its order.
"""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from peagle.engine.machine import Engine
from peagle.train.data import read_training_data
from tests.sandbox.sandboxes import Account, Sandbox, started, until

pytestmark = [
    pytest.mark.engine, pytest.mark.sandbox, pytest.mark.exhaustive,
    pytest.mark.timeout(1800),  # five minutes alone, ten beside other engines on two cores
]  # fmt: skip
ROOT = Path(__file__).resolve().parents[2]
NAME = "loop"


@pytest.fixture(scope="module")
def sandbox(
    tmp_path_factory: pytest.TempPathFactory, engine: Engine, trainer: Path
) -> Iterator[Sandbox]:
    """A sandbox of its own: the loop has quotas and an endpoint that others must not see."""
    with started(Sandbox(tmp_path_factory.mktemp("loop"), engine.python, trainer)) as running:
        yield running


def commands() -> list[list[str]]:
    """The commands of the section, without those that prepare the machine."""
    chapter = (ROOT / "docs" / "train.md").read_text(encoding="utf-8")
    section = re.split(r"^## ", chapter.replace("\\\n", ""), flags=re.MULTILINE)
    loop = next(part for part in section if part.startswith("The loop\n"))
    return [shlex.split(line) for line in re.findall(r"^\$ (.*)$", loop, re.MULTILINE)]


def test_captured_requests_become_a_head_that_serves(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = Account(sandbox)
    account.s3.create_bucket(Bucket="peagle-captured")
    environment = {
        **sandbox.environment, **sandbox.address.environment(), "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    monkeypatch.chdir(tmp_path)
    seen: dict[str, str] = {}
    for program, *arguments in commands():
        if program == "python":
            done = subprocess.run(
                [sys.executable, *arguments], env=environment, capture_output=True, text=True
            )
        else:
            done = sandbox.peagle(*arguments)
        words = [word for word in arguments if not word.startswith("-")]
        assert done.returncode == 0, (arguments, done.stderr[-3000:])
        seen[" ".join(words[:2])] = done.stdout
        if words[0] == "train":
            check_head(tmp_path / arguments[arguments.index("-o") + 1], account)
        if words[:2] == ["compare", NAME] and "--share" not in arguments:
            check_comparison(sandbox)
        if words[0] == "promote":
            served = sandbox.json("status", NAME, "--sandbox")
            assert served["pair"].startswith("peagle/tiny+"), served
    assert len(seen) > 8


def check_head(head: Path, account: Account) -> None:
    """A job has made the head, which drafts clearly better than an untrained one, on text that it
    was not trained on."""
    [job] = account.sagemaker.list_training_jobs()["TrainingJobSummaries"]
    assert job["TrainingJobStatus"] == "Completed"
    acceptance = json.loads((head / "acceptance.json").read_text())
    assert acceptance["total"]["interval"]["low"] > 1.1
    data = read_training_data([f"capture:{NAME}"], account.connect)
    assert len(data.train) + len(data.held_out) >= 155
    rows = (head / "held-out.jsonl").read_text().splitlines()
    held_out = {json.dumps(json.loads(row)["messages"]) for row in rows}
    assert held_out
    assert not held_out & {json.dumps(each.prompt) for each in data.train}


def check_comparison(sandbox: Sandbox) -> None:
    """Both variants have answered, and the drafts of the candidate are counted, which its log has
    some seconds later."""
    _, candidate = until(
        lambda: sandbox.json("compare", NAME, "--sandbox")["variants"],
        lambda variants: variants[1]["acceptance_length"] is not None,
    )
    assert candidate["requests"] >= 3
    assert candidate["acceptance_length"]["high"] > 1.1
