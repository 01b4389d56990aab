"""The release workflow: pinned actions, few rights, and one job alone that may publish."""

import re
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
