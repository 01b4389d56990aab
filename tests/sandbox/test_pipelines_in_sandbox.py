"""Every step of the workflows and build specifications that ``peagle ci init`` writes, in the
sandbox: from an empty account to production, and through a night."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.pipelines import build_commands, run_steps
from tests.sandbox.owners import TYPE, Machine
from tests.sandbox.sandboxes import Account
from tests.support import run_in_process
from tests.unit.cli.test_pipelines import is_here, peagle_words

pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("room")]
WORKFLOWS = ("peagle-pull-request", "peagle-deploy", "peagle-nightly")
STAGES = ("plan", "staging", "production", "nightly")
EDITS = {
    "pair: gpt-oss-20b": "pair: tiny",
    "  region: us-east-1": f"  region: us-east-1\n  instance_type: {TYPE}",
    "    min_drafts: 200": "    min_drafts: 10",
}


def commands(kind: str) -> list[str]:
    """The ``peagle`` commands, in the order in which a merged change runs them."""
    if kind == "github":
        files = (Path(".github/workflows") / f"{name}.yml" for name in WORKFLOWS)
        steps = [run for file in files for name, run in run_steps(file) if name != "Roll back"]
    else:
        files = (Path(f"buildspec-{stage}.yml") for stage in STAGES)
        steps = [text for file in files for text in build_commands(file)]
    return [command for command in steps if command.startswith("peagle ") and is_here(command)]


@pytest.mark.parametrize("kind", ["github", "codepipeline"])
def test_every_step_runs_in_the_sandbox(
    kind: str, account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    machine = Machine(tmp_path / "home", account)

    def peagle(*words: str) -> subprocess.CompletedProcess[str]:
        done = run_in_process(*words, env=machine.environment, cwd=tmp_path)
        assert done.returncode == 0, (words, done.stderr)
        return done

    peagle("ci", "init", kind, "--toolkit", "https://example.com/simple/")
    (tmp_path / "base").mkdir()
    file = tmp_path / "peagle.yaml"
    text = file.read_text("utf-8")
    for before, after in EDITS.items():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    file.write_text(text, "utf-8")
    for text in commands(kind):
        words, output = peagle_words(text)
        done = peagle(*words)
        if output:
            Path(output).write_text(done.stdout, "utf-8")
    for stage, instances in (("staging", 1), ("production", 2)):
        status = json.loads(peagle("status", "chat", "-e", stage, "--json").stdout)
        assert (status["state"], status["k"], status["proved"]) == ("InService", 5, True)
        assert status["instance_count"] == instances
        peagle("destroy", "chat", "-e", stage, "--yes")
