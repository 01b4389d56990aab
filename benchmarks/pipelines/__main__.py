"""From an edited K to production, and from a bad head back, through the generated workflows.

    python -m benchmarks.pipelines --transcript run.txt

In a folder of its own it builds the toolkit's wheel, makes a repository with `peagle ci init
github`, and runs the steps of the workflows that this wrote, as a push and pull requests would
start them: each job in a new virtual environment with the wheel. The account is the sandbox of this
machine, in which the tiny pair serves on vLLM for the CPU. The person who edits, merges and
approves is this script. It needs Python, git and bash; vLLM and the load generator are installed
first, or taken from ``--engines``. Exits with 1 if a step does not end as it must.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.pipelines import gh
from benchmarks.pipelines.github import Event, GitHub, StepOutput, python_version
from benchmarks.pipelines.machine import (
    ROOT,
    Machine,
    RunFailed,
    build_wheel,
    install,
    random_head,
)

INSTANCE_TYPE = "ml.g6.xlarge"
EDITS = (
    ("pair: gpt-oss-20b", "pair: tiny"),
    ("  region: us-east-1", f"  region: us-east-1\n  instance_type: {INSTANCE_TYPE}"),
    ("instance_count: 2\n    rollout: canary", "rollout: all-at-once"),
    ("concurrency: [1, 8]", "concurrency: [1]"),
    ("slo: ttft=2,itl=0.1", "slo: ttft=20,itl=2"),
)
"""What a person changes in the starter's peagle.yaml: the tiny pair on one instance, and limits
that an engine on a CPU keeps."""

HEAD = ROOT / "model_catalog" / "peagle" / "tiny" / "p-eagle"
VARIABLES = {
    "AWS_REGION": "us-east-1",
    "AWS_DEPLOY_ROLE": "arn:aws:iam::123456789012:role/peagle-deploy",
    "AWS_PLAN_ROLE": "arn:aws:iam::123456789012:role/peagle-plan",
    "AWS_IMAGE_ROLE": "arn:aws:iam::123456789012:role/peagle-image",
}
MINUTE_SECONDS = 3
"""How long a minute of the rollout's baking time and of alarms lasts in the sandbox."""

_LONGEST = 40
_EDGE = 16
"""Lines of an output: of a longer one the transcript has the first and the last."""


@dataclass
class Transcript:
    """What ran, in a file as it happens; ``failed`` is the last line of what failed last."""

    path: Path
    folder: Path
    source: str = ""
    failed: str = ""
    began: float = field(default_factory=time.monotonic)

    def line(self, text: str) -> None:
        """Add a line, without the folder of the run."""
        for folder in (str(self.folder), str(self.folder).replace("_", r"\_")):  # in Markdown
            text = text.replace(folder, "RUN")
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")
        print(text, flush=True)

    def heading(self, text: str) -> None:
        """Begin a part of the run."""
        self.source = ""
        self.line(f"\n== {text} (after {(time.monotonic() - self.began) / 60:.1f} min)")

    def show(self, one: StepOutput) -> None:
        """Add a command and its output."""
        if self.source != one.source:
            self.source = one.source
            self.line(f"\n-- {one.source}")
        if one.name:
            self.line(f"# {one.name}")
        for command in one.commands.strip().splitlines():
            self.line(f"$ {command}")
        lines = one.output.rstrip().splitlines()
        if len(lines) > _LONGEST:
            left = len(lines) - 2 * _EDGE
            lines = [*lines[:_EDGE], f"[{left} lines]", *lines[-_EDGE:]]
        for line in lines:
            self.line(line)
        if one.code:
            self.failed = lines[-1] if lines else ""
            self.line(f"exit code {one.code}")


@dataclass
class Run:
    """The repository of a person, and the host with its workflows."""

    person: Machine
    host: GitHub
    transcript: Transcript
    pulls: int = 0

    def commit(self, message: str) -> str:
        """Commit everything and push it; the commit."""
        self.person.git("add", "--all")
        self.person.git("commit", "-q", "-m", message)
        self.person.git("push", "-q", "origin", "HEAD")
        return self.person.git("rev-parse", "HEAD")

    def edit(self, *edits: tuple[str, str]) -> None:
        """Replace texts in peagle.yaml, each of which must be there once."""
        file = self.person.folder / "peagle.yaml"
        text = file.read_text("utf-8")
        for before, after in edits:
            if text.count(before) != 1:
                raise RunFailed(f"peagle.yaml has {before!r} {text.count(before)} times")
            text = text.replace(before, after)
        file.write_text(text, "utf-8")

    def pull_request(self, title: str) -> tuple[str, str]:
        """Commit, and run the workflow of pull requests; the commit and the comment."""
        base = self.person.git("rev-parse", "HEAD")
        commit = self.commit(title)
        self.pulls += 1
        self.transcript.heading(f"Pull request {self.pulls}: {title}")
        self.person.run("git diff --unified=0 HEAD~1 -- peagle.yaml | tail -n +5")
        event = Event("pull_request", commit, base, self.pulls)
        self.expect(self.host.run("peagle-pull-request", event), {"plan": "success"})
        (comment,) = (one["body"] for one in gh.comments(self.host.comments, self.pulls))
        self.transcript.line(f"\n-- The comment on pull request {self.pulls}\n{comment}")
        return commit, comment

    def push(self, title: str, commit: str, expected: dict[str, str]) -> None:
        """Run the workflow that deploys what is merged; a reviewer approves production."""
        self.transcript.heading(title)
        self.expect(self.host.run("peagle-deploy", Event("push", commit)), expected)

    def expect(self, results: dict[str, str], expected: dict[str, str]) -> None:
        """Compare the results of jobs. Raises RunFailed."""
        shown = ", ".join(f"{job}: {result}" for job, result in results.items())
        self.transcript.line(f"\n{shown}")
        if not expected.items() <= results.items():
            raise RunFailed(f"{shown}; expected {expected}")

    def serving(self) -> dict[str, tuple[str, int]]:
        """Configuration and K of what each environment serves."""
        found = {}
        for stage in ("staging", "production"):
            status = self.person.read(f"peagle status chat -e {stage} --json")
            found[stage] = (status["endpoint_config"], status["k"])
        return found


def scenario(run: Run) -> None:
    """The whole run. Raises RunFailed at the first step that does not end as it must."""
    person, log = run.person, run.transcript
    log.heading("A new repository")
    person.run("git init -q -b main && git remote add origin ../origin.git")
    person.run("peagle ci init github --repository acme/models --account 123456789012")
    run.edit(*EDITS)
    person.run("sed -n '/^defaults/,/^gates/p' peagle.yaml")
    run.commit("Serve the tiny pair")

    deployed = {"staging": "success", "production": "success"}
    run.edit(("k: 5", "k: 8"))
    good, comment = run.pull_request("Draft 8 tokens")
    if "| speculation | P-EAGLE, K=5 | P-EAGLE, K=8 |" not in comment or "**Cost**" not in comment:
        raise RunFailed("the comment has not the change and its price")
    run.push("Merge: staging, its gates, approval, production", good, deployed)
    log.heading("What serves")
    before = run.serving()
    if {k for _, k in before.values()} != {8}:
        raise RunFailed(f"K is not 8 everywhere: {before}")

    random_head(HEAD, person.folder / "bad-head")
    run.edit(("    k: 8", "    k: 8\n    drafter: ./bad-head"))
    bad, _ = run.pull_request("Try another head")
    refused = {"staging": "failure", "production": "skipped"}
    run.push("Merge: a head whose drafts are not accepted", bad, refused)
    if "below the floor" not in log.failed or "was rolled back" not in log.failed:
        raise RunFailed("the head was refused, but not by its proof")
    log.heading("What serves is what served before, and is proved")
    person.git("checkout", "-q", good)
    after = run.serving()
    if after != before:
        raise RunFailed(f"what serves has changed: {before}, {after}")
    for stage in ("staging", "production"):
        person.run(f"peagle prove chat -e {stage}")
        person.run(f"peagle drift chat -e {stage}")


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if every step ended as it must."""
    options = _options(arguments)
    options.transcript.unlink(missing_ok=True)
    with TemporaryDirectory(prefix="peagle-pipelines-") as name:
        folder = Path(name)
        log = Transcript(options.transcript.absolute(), folder)
        log.line(f"python -m benchmarks.pipelines, Python {python_version()}")
        wheel = build_wheel(folder / "packages")
        engines = options.engines or folder / "engines"
        engines.mkdir(exist_ok=True)
        home = folder / "account"
        home.mkdir()
        (home / "engines").symlink_to(engines.absolute())
        bin = install(folder / "account-python", wheel, "[sandbox]")
        account = Machine("The account", folder, bin, {"PEAGLE_HOME": str(home)}, log.show)
        try:
            _in_account(log, wheel, account, engines.absolute())
        except RunFailed as error:
            log.line(f"\nFAILED: {error}")
            return 1
        finally:
            account.run("peagle sandbox stop")
    return 0


def _in_account(log: Transcript, wheel: Path, account: Machine, engines: Path) -> None:
    """Start the sandbox, and play the scenario in it. Raises RunFailed."""
    folder = account.folder
    log.heading("The account: the sandbox of this machine")
    account.run("peagle engine install")
    account.run("peagle sandbox start | head -1")
    account.run(f"peagle sandbox quota set {INSTANCE_TYPE} 4")
    minute = f"from peagle.sandbox.client import set_minute; set_minute({MINUTE_SECONDS})"
    account.run(f"python -c '{minute}'")
    variables = json.loads(_quiet(account).run("peagle sandbox env --json"))
    repository = folder / "models"
    repository.mkdir()
    person = Machine(
        "The repository",
        repository,
        install(folder / "person-python", wheel),
        {**variables, "PEAGLE_HOME": str(folder / "person")},
        log.show,
    )
    person.git("init", "-q", "--bare", str(folder / "origin.git"))
    packages = f"{os.environ.get('PIP_FIND_LINKS', '')} {wheel.parent}".strip()
    host = GitHub(
        folder / "origin.git", folder / "jobs", variables, VARIABLES, packages, engines, log.show
    )
    scenario(Run(person, host, log))
    log.heading("Every step ended as it must")


def _quiet(machine: Machine) -> Machine:
    """The machine, whose commands are not shown: their output has a key."""
    return Machine(machine.name, machine.folder, machine.bin, machine.environment, lambda one: None)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipelines", description=__doc__)
    parser.add_argument(
        "--transcript", type=Path, default=Path("pipelines.txt"), help="default: %(default)s"
    )
    parser.add_argument("--engines", type=Path, help="a folder with installed engines, to reuse")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
