"""`peagle train --sagemaker` in the sandbox, which runs the job with the toolkit itself. Without a
trainer it fails in seconds; tests/engine/test_training_loop.py has a job that trains."""

import json
from pathlib import Path

import pytest

from tests.sandbox.sandboxes import Sandbox
from tests.unit.train.test_data import questions, write

pytestmark = pytest.mark.sandbox


def test_a_job_that_fails_says_what_its_program_said(sandbox: Sandbox, tmp_path: Path) -> None:
    data, head = write(tmp_path, questions(30)), tmp_path / "head"
    words = ("train", "tiny", "--data", str(data), "-o", str(head), "--sagemaker", "--sandbox")
    job = ("--instance-type", "ml.g6.xlarge", "--spot", "--yes", "--json")
    names = set()
    for _ in range(2):  # after a failure the same command starts another job of the run
        done = sandbox.peagle(*words, *job)
        assert done.returncode == 4, done.stderr
        error = json.loads(done.stderr.splitlines()[-1])["error"]
        assert error["code"] == "job-failed"
        assert "which has no speculators" in error["message"]
        *_, name = error["command"][:4]
        names.add(name)
    assert len({each.rpartition("-")[0].rpartition("-")[0] for each in names}) == 1
    status = sandbox.json("train", "status", name, "--sandbox")
    assert (status["status"], status["stage"], status["is_spot"]) == ("Failed", "Failed", True)
    lines = [
        event["message"] for event in sandbox.json("train", "logs", name, "--sandbox")["events"]
    ]
    assert any("which has no speculators" in line for line in lines)
    assert not head.exists()
