"""From an edited K to production, and from a bad head back, through the generated workflows.

    python -m tests.pipelines --transcript run.txt
    python -m tests.pipelines --host codepipeline --transcript run.txt

In a folder of its own it builds the toolkit's wheel, makes a repository with `peagle ci init`, and
runs the steps of the workflows or build specifications that this wrote, as pull requests and pushes
would start them: each job in a new virtual environment with the wheel. The account is the sandbox
of this machine, in which the tiny pair serves on vLLM for the CPU. The person who edits, merges and
approves is this script. It needs Python, git, bash and jq; vLLM and the load generator are
installed first, or taken from ``--engines``. Exits with 1 if a step does not end as it must.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.pipelines.codepipeline import CodePipeline
from tests.pipelines.github import GitHub
from tests.pipelines.jobs import Place
from tests.pipelines.machine import Machine, RunFailed, build_wheel, install
from tests.pipelines.scenario import INSTANCE_TYPE, Host, OnCodePipeline, OnGitHub, Run, play
from tests.pipelines.transcript import Transcript

VARIABLES = {
    "AWS_REGION": "us-east-1",
    "AWS_DEPLOY_ROLE": "arn:aws:iam::123456789012:role/peagle-deploy",
    "AWS_PLAN_ROLE": "arn:aws:iam::123456789012:role/peagle-plan",
    "AWS_IMAGE_ROLE": "arn:aws:iam::123456789012:role/peagle-image",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if every step ended as it must."""
    options = _options(arguments)
    options.transcript.unlink(missing_ok=True)
    with TemporaryDirectory(prefix="peagle-pipelines-") as name:
        folder = Path(name)
        log = Transcript(options.transcript.absolute(), folder)
        version = ".".join(map(str, sys.version_info[:3]))
        log.line(f"python -m tests.pipelines --host {options.host}, Python {version}")
        wheel = build_wheel(folder / "packages")
        engines = options.engines or folder / "engines"
        engines.mkdir(exist_ok=True)
        home = folder / "account"
        home.mkdir()
        (home / "engines").symlink_to(engines.absolute())
        programs = install(folder / "account-python", wheel, "[sandbox]")
        account = Machine("The account", folder, programs, {"PEAGLE_HOME": str(home)}, log.show)
        try:
            _in_account(options.host, log, wheel, account, engines.absolute())
        except RunFailed as error:
            log.line(f"\nFAILED: {error}")
            return 1
        finally:
            account.run("peagle sandbox stop")
    return 0


def _in_account(kind: str, log: Transcript, wheel: Path, account: Machine, engines: Path) -> None:
    """Start the sandbox, and play the story in it. Raises RunFailed."""
    folder = account.folder
    log.heading("The account: the sandbox of this machine")
    account.run("peagle engine install")
    account.run("peagle sandbox start | head -1")
    account.run(f"peagle sandbox quota set {INSTANCE_TYPE} 8")
    variables = json.loads(_quiet(account).run("peagle sandbox env --json"))
    repository = folder / "models"
    (repository / "wheels").mkdir(parents=True)
    shutil.copy(wheel, repository / "wheels")
    person = Machine(
        "The repository",
        repository,
        install(folder / "person-python", wheel),
        {**variables, "PEAGLE_HOME": str(folder / "person")},
        log.show,
    )
    person.git("init", "-q", "--bare", str(folder / "origin.git"))
    packages = f"{os.environ.get('PIP_FIND_LINKS', '')} {wheel.parent}".strip()
    place = Place(folder / "origin.git", folder / "jobs", variables, packages, engines, log.show)
    github, codepipeline = OnGitHub(GitHub(place, VARIABLES)), OnCodePipeline(CodePipeline(place))
    host: Host = github if kind == "github" else codepipeline
    play(Run(person, host, log))
    log.heading("Every step ended as it must")


def _quiet(machine: Machine) -> Machine:
    """The machine, whose commands are not shown: their output has a key."""
    return Machine(machine.name, machine.folder, machine.bin, machine.environment, lambda one: None)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.pipelines", description=__doc__)
    parser.add_argument(
        "--host", choices=("github", "codepipeline"), default="github", help="default: %(default)s"
    )
    parser.add_argument(
        "--transcript", type=Path, default=Path("pipelines.txt"), help="default: %(default)s"
    )
    parser.add_argument("--engines", type=Path, help="a folder with installed engines, to reuse")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
