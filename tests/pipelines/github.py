"""Runs workflows of GitHub Actions on this machine: each job in a folder of its own, with nothing
but Python, git and a shell, as GitHub's runners begin.

Actions are replaced by what they do: a checkout of a local repository, a virtual environment, the
variables of the account, folders for artifacts. ``gh`` keeps comments in files.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.pipelines import gh
from tests.pipelines.expressions import Function, fill, is_met
from tests.pipelines.jobs import Place, StepOutput, new_python
from tests.pipelines.steps import Job, Step, jobs

_GH = f"""#!/bin/sh
exec {shlex.quote(sys.executable)} {shlex.quote(str(Path(gh.__file__)))} "$@"
"""


@dataclass(frozen=True)
class Event:
    """What starts a workflow: a push of a commit, or a pull request with the commit of its base."""

    name: str
    commit: str
    base: str = ""
    number: int = 0

    def document(self) -> dict[str, Any]:
        """The context ``github``."""
        pull = {
            "number": self.number,
            "base": {"sha": self.base},
            "head": {"repo": {"full_name": "acme/models"}},
        }
        return {"repository": "acme/models", "event": {"pull_request": pull}, "token": "none"}


@dataclass
class GitHub:
    """A host of one repository, whose ``variables`` are given."""

    place: Place
    variables: Mapping[str, str]
    results: dict[str, str] = field(default_factory=dict)

    @property
    def comments(self) -> Path:
        """The folder of the comments on pull requests."""
        return self.place.folder / "comments"

    def run(self, workflow: str, event: Event) -> dict[str, str]:
        """Run a workflow of the event's commit; the result of each job."""
        self.comments.mkdir(parents=True, exist_ok=True)
        self.results = {}
        path = Path(f".github/workflows/{workflow}.yml")
        source = self.place.folder / f"{event.commit[:12]}.yml"
        source.write_bytes(self.place.git("show", f"{event.commit}:{path}"))
        for job in jobs(source):
            contexts = self._contexts(event) | {
                "needs": {name: {"result": self.results[name]} for name in job.needs}
            }
            good = all(self.results[name] == "success" for name in job.needs)
            if not is_met(job.condition, contexts, {"always": lambda: True}, good):
                self.results[job.name] = "skipped"
                continue
            ended = [self._run_job(workflow, job, event, one) for one in job.matrix]
            self.results[job.name] = "success" if all(ended) else "failure"
        return self.results

    def _contexts(self, event: Event) -> dict[str, Any]:
        return {"github": event.document(), "vars": self.variables}

    def _run_job(self, workflow: str, job: Job, event: Event, matrix: Mapping[str, str]) -> bool:
        source = f"{workflow} / {job.name}"
        machine = self.place.folder / "-".join(
            (event.commit[:12], workflow, job.name, *matrix.values())
        )
        runner = _Runner(self, event, machine, source, self._contexts(event) | {"matrix": matrix})
        runner.environment |= runner.filled(job.environment)
        for step in job.steps:
            runner.step(step)
        shutil.rmtree(machine / "python", ignore_errors=True)
        return runner.succeeded


class _Runner:
    """One run of a job."""

    def __init__(
        self, host: GitHub, event: Event, machine: Path, source: str, contexts: dict[str, Any]
    ) -> None:
        self.host, self.event, self.machine, self.source = host, event, machine, source
        self.contexts = contexts | {"steps": {}}
        self.succeeded = True
        self.work = machine / "work"
        self.environment = {**host.place.begin(machine), "COMMENTS": str(host.comments)}
        (machine / "bin" / "gh").write_text(_GH, "utf-8")
        (machine / "bin" / "gh").chmod(0o755)

    def filled(self, texts: Mapping[str, Any]) -> dict[str, str]:
        return {key: fill(str(text), self.contexts, {}) for key, text in texts.items()}

    def step(self, step: Step) -> None:
        functions: dict[str, Function] = {
            "always": lambda: True,
            "failure": lambda: not self.succeeded,
            "hashFiles": lambda name: "1" if (self.work / name).is_file() else "",
        }
        if not is_met(step.condition, self.contexts, functions, self.succeeded):
            return
        if step.uses:
            _ACTIONS[step.action](self, self.filled(step.inputs))
            return
        outputs = self.machine / "outputs"
        outputs.write_text("")
        done = subprocess.run(
            ["bash", "-e", "-c", step.run],
            cwd=self.work,
            env=self.environment | self.filled(step.environment) | {"GITHUB_OUTPUT": str(outputs)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            check=False,
        )
        pairs = (line.partition("=") for line in outputs.read_text().splitlines())
        if step.id:
            self.contexts["steps"][step.id] = {"outputs": {key: text for key, _, text in pairs}}
        self.succeeded &= done.returncode == 0
        self.host.place.show(
            StepOutput(self.source, step.name, step.run, done.stdout, done.returncode)
        )

    def checkout(self, inputs: Mapping[str, str]) -> None:
        folder = self.work / inputs.get("path", ".")
        self.host.place.checkout(folder, inputs.get("ref") or self.event.commit)

    def setup_python(self, inputs: Mapping[str, str]) -> None:
        new_python(self.machine)

    def configure_credentials(self, inputs: Mapping[str, str]) -> None:
        """The sandbox's key stands for the role, which must be named."""
        if not inputs["role-to-assume"]:
            raise ValueError(f"{self.source}: no role")
        self.environment |= {**self.host.place.account, "AWS_REGION": inputs["aws-region"]}

    def upload(self, inputs: Mapping[str, str]) -> None:
        kept = self.work / inputs["path"]
        if kept.is_file():
            target = self.host.place.folder / "artifacts" / self.event.commit / inputs["name"]
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(kept, target)

    def download(self, inputs: Mapping[str, str]) -> None:
        source = self.host.place.folder / "artifacts" / self.event.commit / inputs["pattern"]
        if source.is_dir():
            shutil.copytree(source, self.work, dirs_exist_ok=True)


_ACTIONS: dict[str, Callable[[_Runner, Mapping[str, str]], None]] = {
    "actions/checkout": _Runner.checkout,
    "actions/setup-python": _Runner.setup_python,
    "actions/upload-artifact": _Runner.upload,
    "actions/download-artifact": _Runner.download,
    "aws-actions/configure-aws-credentials": _Runner.configure_credentials,
}
