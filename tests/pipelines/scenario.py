"""The story of the run, the same for each host: an edited K, a bad head, and a K that production
refuses."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass

from tests.pipelines import gh
from tests.pipelines.codepipeline import CodePipeline
from tests.pipelines.github import Event, GitHub
from tests.pipelines.machine import ROOT, Machine, RunFailed, random_head
from tests.pipelines.transcript import Transcript

INSTANCE_TYPE = "ml.g6.xlarge"
EDITS = (
    ("pair: gpt-oss-20b", "pair: tiny"),
    ("  region: us-east-1", f"  region: us-east-1\n  instance_type: {INSTANCE_TYPE}"),
    ("    rollout: canary", "    rollout: canary\n    baking_time: 3m"),
    ("    observe: true", "    observe: true\n    gates:\n      prove: {floor: 3.5}"),
    ("concurrency: [1, 8]", "concurrency: [1]"),
    ("slo: ttft=2,itl=0.1", "slo: ttft=20,itl=2"),
)
"""What a person changes in the starter's peagle.yaml: the tiny pair, a higher floor of production's
own proof, and limits that an engine on a CPU keeps."""
HEAD = ROOT / "model_catalog" / "peagle" / "tiny" / "p-eagle"


class Host(ABC):
    """A host as the story sees it."""

    init: str
    """The words after ``peagle ci init``."""

    @abstractmethod
    def propose(self, commit: str, base: str, log: Transcript) -> dict[str, str]:
        """What runs before a change is merged; the results."""

    @abstractmethod
    def deploy(self, commit: str) -> dict[str, str]:
        """What runs once it is merged; the results."""

    @abstractmethod
    def night(self, commit: str) -> dict[str, str]:
        """What runs every night; the results."""

    @abstractmethod
    def shown(self) -> str:
        """How a reviewer saw the last change: as a comment, or where it is approved."""


@dataclass
class OnGitHub(Host):
    """Pull requests with comments, and workflows."""

    host: GitHub
    pulls: int = 0
    init = "github --repository acme/models --account 123456789012"

    def propose(self, commit: str, base: str, log: Transcript) -> dict[str, str]:
        self.pulls += 1
        event = Event("pull_request", commit, base, self.pulls)
        results = self.host.run("peagle-pull-request", event)
        log.line(f"\n-- The comment on pull request {self.pulls}\n{self.shown()}")
        return results

    def deploy(self, commit: str) -> dict[str, str]:
        return self.host.run("peagle-deploy", Event("push", commit))

    def night(self, commit: str) -> dict[str, str]:
        return self.host.run("peagle-nightly", Event("schedule", commit))

    def shown(self) -> str:
        (comment,) = gh.comments(self.host.comments, self.pulls)
        return str(comment["body"])


@dataclass
class OnCodePipeline(Host):
    """A pipeline whose approval shows the change."""

    host: CodePipeline
    init = "codepipeline --account 123456789012"

    def propose(self, commit: str, base: str, log: Transcript) -> dict[str, str]:
        return {}

    def deploy(self, commit: str) -> dict[str, str]:
        return self.host.run(commit)

    def night(self, commit: str) -> dict[str, str]:
        return self.host.night(commit)

    def shown(self) -> str:
        return self.host.shown


@dataclass
class Run:
    """The repository of a person, and the host with its pipelines."""

    person: Machine
    host: Host
    transcript: Transcript

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

    def change(self, title: str, *edits: tuple[str, str]) -> str:
        """Edit, commit, and run what a proposed change starts; the commit."""
        base = self.person.git("rev-parse", "HEAD")
        self.edit(*edits)
        commit = self.commit(title)
        self.transcript.heading(f"A change: {title}")
        self.person.run("git diff --unified=0 HEAD~1 -- peagle.yaml | tail -n +5")
        self.expect(self.host.propose(commit, base, self.transcript), {}, "success")
        return commit

    def deploy(self, title: str, commit: str, staging: str, production: str) -> None:
        """Run what deploys the commit; a reviewer approves production."""
        self.transcript.heading(title)
        expected = {"staging": staging, "production": production}
        self.expect(self.host.deploy(commit), expected, "success")

    def expect(self, results: dict[str, str], expected: dict[str, str], others: str) -> None:
        """Compare the results with the expected ones, and all others with ``others``. Raises
        RunFailed."""
        shown = ", ".join(f"{job}: {result}" for job, result in results.items())
        if shown:
            self.transcript.line(f"\n{shown}")
        if results != dict.fromkeys(results, others) | expected:
            raise RunFailed(f"{shown}; expected {expected}")

    def serving(self, *stages: str) -> dict[str, tuple[str, int]]:
        """Configuration and K of what each environment serves."""
        found = {}
        for stage in stages:
            status = self.person.read(f"peagle status chat -e {stage} --json")
            found[stage] = (status["endpoint_config"], status["k"])
        return found


def play(run: Run) -> None:
    """The whole story. Raises RunFailed at the first step that does not end as it must."""
    person, log = run.person, run.transcript
    log.heading("A new repository")
    person.run("git init -q -b main && git remote add origin ../origin.git")
    wheel = "$(ls wheels/*.whl)"
    person.run(f"peagle ci init {run.host.init} --toolkit {wheel}")
    run.edit(*EDITS)
    person.run("sed -n '/^defaults/,/^# Options/p' peagle.yaml")
    run.commit("Serve the tiny pair")
    good = run.change("Draft 8 tokens", ("k: 5", "k: 8"))
    run.deploy("Merge: staging, its gates, approval, production", good, "success", "success")
    shown = run.host.shown()
    if "| speculation | P-EAGLE, K=5 | P-EAGLE, K=7 |" not in shown or "**Cost**" not in shown:
        raise RunFailed("a reviewer has not seen the change and its price")
    log.heading("What serves")
    before = run.serving("staging", "production")
    if {k for _, k in before.values()} != {8}:
        raise RunFailed(f"K is not 8 everywhere: {before}")
    _try_a_bad_head(run)
    if (after := run.serving("staging", "production")) != before:
        raise RunFailed(f"what serves has changed: {before}, {after}")
    _draft_too_little(run, before["production"])
    log.heading("The change is taken back")
    person.git("revert", "--no-edit", "HEAD")
    person.run("git log --oneline | cut -d' ' -f2-")
    person.git("checkout", "-q", good)
    person.run("peagle prove chat -e production")
    _deploy_what_serves(person)


def _deploy_what_serves(person: Machine) -> None:
    """The build that rolled back does not have the plan of what serves again: only the dashboard
    differs from that plan, until a deployment, which changes nothing else, writes it again."""
    found = json.loads(person.run("peagle drift chat -e production --json", code=3))
    differing = [one["field"] for one in found["fields"]]
    if not all(one.startswith("dashboard.") for one in differing):
        raise RunFailed(f"more than the dashboard differs after the rollback: {differing}")
    person.run("peagle deploy chat -e production --yes --json | jq -e '.changed == false'")
    person.run("peagle drift chat -e production")


def _try_a_bad_head(run: Run) -> None:
    """Its drafts are not accepted: staging refuses it, and production never sees it."""
    random_head(HEAD, run.person.folder / "bad-head")
    bad = run.change("Try another head", ("    k: 8", "    k: 8\n    drafter: ./bad-head"))
    run.deploy("Merge: a head whose drafts are not accepted", bad, "failure", "skipped")
    if "below the floor" not in run.transcript.failed:
        raise RunFailed("the head was refused, but not by its proof")
    if "was rolled back" not in run.transcript.failed:
        raise RunFailed("the head was refused, but not rolled back")
    run.transcript.heading("What serves is what served before")


def _draft_too_little(run: Run, before: tuple[str, int]) -> None:
    """The canary succeeds, and then production's own gate fails: what served before returns."""
    few = run.change("Draft 3 tokens", ("    k: 8\n    drafter: ./bad-head", "    k: 3"))
    title = "Merge: a canary to production, whose gate then fails"
    run.deploy(title, few, "success", "failure")
    run.transcript.heading("Production has been rolled back")
    found = run.serving("staging", "production")
    if found["staging"][1] != 3 or found["production"] != before:
        raise RunFailed(f"{found}; production must serve {before}")
    run.transcript.heading("The night: production does not serve what the file says")
    results = run.host.night(few)
    first = next(iter(results))
    run.expect(results, {first: "failure"}, "success")
