"""The release workflow: pinned actions, few rights, and one job alone that may publish."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"\s*- uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")


def workflow(file: Path) -> dict[Any, Any]:
    document = yaml.safe_load(file.read_text())
    assert isinstance(document, dict)
    return document


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_action_is_pinned_by_its_commit(file: Path) -> None:
    used = [line for line in file.read_text().splitlines() if "uses:" in line]
    assert used
    assert [line for line in used if not PINNED.fullmatch(line)] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_workflow_has_no_right_by_default_and_every_job_its_own(file: Path) -> None:
    document = workflow(file)
    assert document["permissions"] == {}
    assert all("permissions" in job for job in document["jobs"].values())
    assert all(job["timeout-minutes"] <= 60 for job in document["jobs"].values())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_workflow_has_a_secret_or_runs_text_of_others(file: Path) -> None:
    text = file.read_text()
    assert "secrets." not in text
    assert "pull_request_target" not in text
    commands = [step.get("run", "") for job in workflow(file)["jobs"].values()
                for step in job["steps"]]  # fmt: skip
    assert not any("${{" in command for command in commands), "a name of a tag is not a command"


def test_the_job_that_builds_may_not_publish_and_the_one_that_publishes_runs_nothing() -> None:
    jobs = workflow(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    assert jobs["build"]["permissions"] == {"contents": "read"}
    checkout = jobs["build"]["steps"][0]
    assert checkout["with"]["persist-credentials"] is False
    assert jobs["attest"]["permissions"] == {"id-token": "write", "attestations": "write"}
    publish = jobs["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["environment"] == "pypi"
    assert {"build", "attest"} <= set(publish["needs"])
    assert not any("run" in step for job in ("attest", "publish") for step in jobs[job]["steps"])
    used = [step["uses"].partition("@")[0] for step in publish["steps"]]
    assert used == ["actions/download-artifact", "pypa/gh-action-pypi-publish"]
    assert publish["steps"][-1]["with"] == {"attestations": True}


def test_only_a_tag_of_a_version_starts_a_release() -> None:
    document = workflow(ROOT / ".github" / "workflows" / "release.yml")
    assert document[True] == {"push": {"tags": ["v[0-9]+.[0-9]+.[0-9]+*"]}}, "yaml reads on as true"


def test_the_tools_of_the_release_are_locked_with_hashes() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    installs = [
        line for line in text.splitlines() if "pip install" in line or '/pip" install' in line
    ]
    assert len(installs) == 3
    assert all("--require-hashes" in line or "--no-deps dist/" in line for line in installs)


# `.ci/docker-engine base`: the tests' base image has the engine's Python, or the error says why.
SCRIPT = Path(__file__).parents[2] / ".ci" / "docker-engine"
TOOLS = (
    "bash", "cat", "dirname", "grep", "id", "mkdir", "mktemp", "rm", "sed", "seq", "tail", "tar",
)  # fmt: skip
DOCKER = """\
echo "docker $*" >>"$NOTES"
case $1 in
image) [ -e "$MADE" ] && cat "$MADE" ;;
import) cat >/dev/null ;;
esac
"""
DEBOOTSTRAP = """\
echo "debootstrap $*" >>"$NOTES"
[ ! -e "$BROKEN" ] || { echo "E: Failed getting release file"; exit 1; }
for last; do :; done
mkdir -p "$last"
"""


class Machine:
    """A checkout with its engine, and the programs of a machine."""

    def __init__(self, folder: Path, python: str) -> None:
        self.script = folder / ".ci" / "docker-engine"
        self.notes, self.made, self.broken = (folder / n for n in ("notes", "made", "broken"))
        self.scripts = folder / "debootstrap" / "scripts"
        self.programs = folder / "bin"
        self.engine = folder / "engine-python"
        for place in (self.script.parent, self.scripts, self.programs, folder / ".venv" / "bin"):
            place.mkdir(parents=True)
        shutil.copy(SCRIPT, self.script)
        for name in ("bookworm", "trixie"):
            (self.scripts / name).touch()
        for tool in TOOLS:
            (self.programs / tool).symlink_to(str(shutil.which(tool)))
        self.program("docker", DOCKER)
        self.program("debootstrap", DEBOOTSTRAP)
        self.program("dpkg", "exit 0")
        self.program("sudo", 'shift; exec "$@"')
        self.program("../engine-python", f"echo {python}")
        self.program("../.venv/bin/peagle", "echo status")
        self.program("../.venv/bin/python", f'cat >/dev/null; echo "{self.engine}"')

    def program(self, name: str, body: str) -> None:
        path = self.programs / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)

    def base(self) -> subprocess.CompletedProcess[str]:
        """What `.ci/docker-engine base` does there."""
        return subprocess.run(
            [self.programs / "bash", self.script, "base"],
            env={"PATH": str(self.programs), "NOTES": str(self.notes), "MADE": str(self.made),
                 "BROKEN": str(self.broken), "DEBOOTSTRAP_DIR": str(self.scripts.parent),
                 "TMPDIR": str(self.programs.parent)},
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    def calls_of(self, program: str) -> list[str]:
        """The lines with which the program was called."""
        lines = self.notes.read_text().splitlines() if self.notes.exists() else []
        return [line for line in lines if line.startswith(program)]


@pytest.mark.parametrize(
    ("python", "release"), [("3.11", "bookworm"), ("3.12", "noble"), ("3.13", "trixie")]
)
def test_the_base_has_the_engines_python(tmp_path: Path, python: str, release: str) -> None:
    machine = Machine(tmp_path, python)
    (machine.scripts / release).touch()
    done = machine.base()
    assert done.returncode == 0, done.stderr
    (made,) = machine.calls_of("debootstrap")
    assert f" {release} " in made
    assert "--force-check-gpg" in made
    assert ("universe" in made) == (release == "noble")
    (imported,) = machine.calls_of("docker import")
    assert f"--message {release} " in imported
    assert not list(tmp_path.glob("tmp.*"))


def test_a_release_that_debootstrap_does_not_know_is_named(tmp_path: Path) -> None:
    done = Machine(tmp_path, "3.12").base()
    assert done.returncode == 1
    assert "the engine has Python 3.12, and debootstrap here does not know noble" in _last(done)


def test_a_python_that_no_release_has_is_named(tmp_path: Path) -> None:
    done = Machine(tmp_path, "3.10").base()
    assert done.returncode == 1
    assert "no Debian or Ubuntu has the engine's Python 3.10" in _last(done)


def test_an_unreachable_mirror_is_reported_and_nothing_is_left(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "3.13")
    machine.broken.touch()
    done = machine.base()
    assert done.returncode == 1
    assert "debootstrap of trixie: E: Failed getting release file" in _last(done)
    assert machine.calls_of("docker import") == []
    assert not list(tmp_path.glob("tmp.*"))


@pytest.mark.parametrize(
    ("made", "again"),
    [("trixie", False), ("bookworm", True), ("Imported from -", False), ("", False)],
    ids=["the same", "for another Python", "by an older script", "a user's own"],
)
def test_only_a_base_for_another_python_is_rebuilt(tmp_path: Path, made: str, again: bool) -> None:
    machine = Machine(tmp_path, "3.13")
    machine.made.write_text(made)
    assert machine.base().returncode == 0
    assert bool(machine.calls_of("docker import")) == again


def test_without_an_engine_the_checkouts_python_counts(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "3.11")
    no_engine = 'case $2 in "import json"*) cat >/dev/null; exit 1 ;; esac; echo 3.13'
    machine.program("../.venv/bin/python", no_engine)
    assert machine.base().returncode == 0
    assert " trixie " in machine.calls_of("debootstrap")[0]


def _last(done: subprocess.CompletedProcess[str]) -> str:
    return done.stderr.splitlines()[-1]


def test_the_script_is_executable() -> None:
    assert os.access(SCRIPT, os.X_OK)


# ``make audit``: vulnerabilities fail it; a service that does not answer is a message.
AUDIT = Path(__file__).parents[2] / ".ci" / "audit"
SKIPPED = "a 1 Dependency not found on PyPI and could not be audited: a (1)"


@pytest.mark.parametrize(("printed", "status", "code", "is_skipped"), [
    ("No known vulnerabilities found", 0, 0, False),
    ("Found 1 known vulnerability in 1 package", 1, 1, False),
    ("pip_audit._service.interface.ServiceError: Max retries exceeded", 1, 0, True),
    (f"No known vulnerabilities found\n{SKIPPED}", 0, 0, True),
    ("usage: pip-audit", 2, 1, False),
])  # fmt: skip
def test_only_a_service_without_an_answer_is_skipped(
    tmp_path: Path, printed: str, status: int, code: int, is_skipped: bool
) -> None:
    (tmp_path / "printed").write_text(f"{printed}\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncat "{tmp_path}/printed"\nexit {status}\n')
    python.chmod(0o755)
    lock = tmp_path / "lock.txt"
    lock.write_text("a==1 \\\n    --hash=sha256:00\n")
    done = subprocess.run(
        [AUDIT, python, lock], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == code
    assert done.stderr.startswith("skipped: ") is is_skipped
    assert is_skipped or printed in done.stdout
