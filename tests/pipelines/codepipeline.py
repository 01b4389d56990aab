"""Runs a pipeline of CodePipeline on this machine: each build in a folder of its own, with nothing
but Python, git, jq and a shell.

As CodeBuild does: a command has the variables that those before it export, the first that fails
ends its phase, and the phase after a build then runs too unless the specification aborts.
Artifacts and exported variables go on as the template wires them.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.pipelines.jobs import Place, StepOutput, new_python
from tests.pipelines.template import Action, Build, Template

_PHASES = ("install", "pre_build", "build", "post_build")


@dataclass
class CodePipeline:
    """The pipeline of one repository; each approval is given at once."""

    place: Place
    approvals: int = 0
    shown: str = ""
    """What the last approval showed."""

    def run(self, commit: str) -> dict[str, str]:
        """Run the pipeline of a commit; the result of each stage, by its name in small letters."""
        results: dict[str, str] = {}
        variables: dict[str, str] = {}
        template = Template(self.place.git("show", f"{commit}:pipeline.yaml"))
        for stage in template.stages():
            going = all(one == "success" for one in results.values())
            ended = "skipped"
            if going:
                done = (self._act(commit, stage.name, one, variables) for one in stage.actions)
                ended = "success" if all(done) else "failure"
            results[stage.name.lower()] = ended
        return results

    def night(self, commit: str) -> dict[str, str]:
        """Run the nightly build of a commit; its result."""
        build = Template(self.place.git("show", f"{commit}:pipeline.yaml")).build("NightlyProject")
        run = _BuildRun(self.place, commit, "nightly", build, {})
        return {"nightly": "success" if run.phases() else "failure"}

    def _act(self, commit: str, stage: str, action: Action, variables: dict[str, str]) -> bool:
        """Run one action; whether it succeeded."""
        if action.build is None:
            self.approvals += 1
            self.shown = _filled(action.shown, variables)
            note = f"approved; the approval shows:\n{self.shown}"
            self.place.show(StepOutput(f"{stage} / {action.name}", "", "", note, 0))
            return True
        artifacts = self.place.folder / "artifacts" / commit
        given = {name: artifacts / name for name in action.inputs[1:]}
        run = _BuildRun(self.place, commit, stage, action.build, given)
        if not run.phases():
            return False
        for name in action.outputs:
            run.keep(artifacts / name)
        exported = run.exported().items()
        variables |= {f"#{{{action.namespace}.{key}}}": text for key, text in exported}
        return True


class _BuildRun:
    """One build: the source is in ``work``, each further artifact in a folder of its own."""

    def __init__(
        self, place: Place, commit: str, name: str, build: Build, artifacts: Mapping[str, Path]
    ) -> None:
        self.place, self.name = place, name
        self.machine = place.folder / f"{commit[:12]}-{name.lower()}"
        begun = place.begin(self.machine)
        self.work = self.machine / "work"
        place.checkout(self.work, commit)
        text = (self.work / build.specification).read_text("utf-8")
        self.specification: dict[str, Any] = yaml.safe_load(text)
        self.state = self.machine / "variables"
        self.state.write_text("", "utf-8")
        folders = {f"CODEBUILD_SRC_DIR_{key}": str(path) for key, path in artifacts.items()}
        role = {**place.account, "AWS_REGION": "us-east-1"}  # the sandbox's key is the project's
        self.environment = {**begun, **role, **build.environment, **folders}

    def phases(self) -> bool:
        """Run the phases; whether the build succeeded."""
        succeeded = True
        for name in _PHASES:
            phase = self.specification["phases"].get(name)
            if phase is None:
                continue
            if "python" in phase.get("runtime-versions", {}):
                new_python(self.machine)
            if not all(self._command(name, one) for one in phase["commands"]):
                succeeded = False
                if name != "build" or phase.get("on-failure") == "ABORT":
                    break
        shutil.rmtree(self.machine / "python", ignore_errors=True)
        return succeeded

    def keep(self, target: Path) -> None:
        """Keep the artifact's files, all of which must be there."""
        target.mkdir(parents=True)
        for name in self.specification["artifacts"]["files"]:
            shutil.copy(self.work / name, target)

    def exported(self) -> dict[str, str]:
        """The variables that the specification exports."""
        names = self.specification.get("env", {}).get("exported-variables", [])
        return {name: self._shell(f'printf %s "${name}"').stdout for name in names}

    def _command(self, phase: str, command: str) -> bool:
        done = self._shell(command)
        source = f"{self.name} / {phase}"
        self.place.show(StepOutput(source, "", command, done.stdout, done.returncode))
        return done.returncode == 0

    def _shell(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command with the variables that those before it have exported."""
        state = shlex.quote(str(self.state))
        return subprocess.run(
            ["sh", "-c", f". {state}\ntrap 'export -p > {state}' EXIT\n{command}"],
            cwd=self.work,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            check=False,
        )


def _filled(text: str, variables: Mapping[str, str]) -> str:
    for name, value in variables.items():
        text = text.replace(name, value)
    return text
