"""The host of build specifications: phases, variables and artifacts, as CodePipeline has them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.pipelines.codepipeline import CodePipeline
from tests.pipelines.jobs import Place, StepOutput
from tests.pipelines.machine import PERSON

PIPELINE = Path(__file__).parents[3] / "infra" / "pipelines" / "codepipeline" / "pipeline.yaml"

PLAN = """
env: {exported-variables: [CHANGE]}
phases:
  install: {commands: ["export WORD=kept"]}
  build: {commands: ['export CHANGE="K of $ENDPOINT, $WORD"', "echo p > plan.json"]}
artifacts: {files: [plan.json]}
"""
STAGING = """
phases: {build: {commands: ["echo the-digest > image.txt"]}}
artifacts: {files: [image.txt]}
"""
PRODUCTION = """
phases:
  build: {on-failure: ABORT, commands: ['cat "$CODEBUILD_SRC_DIR_Image/image.txt"', "%s", "echo 2"]}
  post_build: {commands: ["echo after"]}
"""
NIGHTLY = """
phases:
  build: {commands: ["false", "echo never"]}
  post_build: {commands: ["echo after"]}
"""


class Repository:
    """A repository with these specifications, and the host that runs them."""

    def __init__(self, folder: Path, **specifications: str) -> None:
        self.shown: list[StepOutput] = []
        source = folder / "repository"
        source.mkdir()
        texts = {"plan": PLAN, "staging": STAGING, "nightly": NIGHTLY, **specifications}
        for name, text in texts.items():
            (source / f"buildspec-{name}.yml").write_text(text)
        (source / "pipeline.yaml").write_bytes(PIPELINE.read_bytes())
        for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "A pipeline")):
            subprocess.run(["git", *words], cwd=source, env=PERSON, check=True)
        place = Place(source, folder / "jobs", {"KEY": "1"}, "", folder, self.shown.append)
        self.host = CodePipeline(place)
        self.commit = place.git("rev-parse", "HEAD").decode().strip()

    def output(self, source: str) -> list[str]:
        return [one.output for one in self.shown if one.source == source]


@pytest.mark.thorough
def test_variables_and_artifacts_go_on_as_the_template_wires_them(tmp_path: Path) -> None:
    made = Repository(tmp_path, production=PRODUCTION % "test $KEY = 1")

    results = made.host.run(made.commit)

    assert results == {"plan": "success", "staging": "success", "production": "success"}
    assert made.host.shown == "K of chat, kept"
    assert made.output("Production / build") == ["the-digest\n", "", "2\n"]
    assert made.output("Production / post_build") == ["after\n"]


@pytest.mark.thorough
def test_a_build_that_aborts_ends_at_the_command_that_fails(tmp_path: Path) -> None:
    made = Repository(tmp_path, production=PRODUCTION % "exit 3")

    assert made.host.run(made.commit)["production"] == "failure"
    assert [one.code for one in made.shown if one.source == "Production / build"] == [0, 3]
    assert made.output("Production / post_build") == []


@pytest.mark.thorough
def test_nobody_is_asked_about_a_change_that_staging_refuses(tmp_path: Path) -> None:
    refused = STAGING.replace("echo the-digest", "exit 4; echo")
    made = Repository(tmp_path, production=PRODUCTION % "true", staging=refused)

    results = made.host.run(made.commit)

    assert results == {"plan": "success", "staging": "failure", "production": "skipped"}
    assert made.host.shown == ""


@pytest.mark.thorough
def test_what_ends_the_night_runs_after_drift_too(tmp_path: Path) -> None:
    made = Repository(tmp_path, production=PRODUCTION % "true")

    assert made.host.night(made.commit) == {"nightly": "failure"}
    assert made.output("nightly / build") == [""]
    assert made.output("nightly / post_build") == ["after\n"]
