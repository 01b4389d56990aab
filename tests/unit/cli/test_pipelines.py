"""Pipelines: what ``peagle ci init`` writes is valid, and every step of it runs."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from peagle.aws import images as codebuild
from tests import gh
from tests.pipelines import build_commands, read, run_steps
from tests.support import Done, in_process
from tests.unit.aws.cloud import ACCOUNT
from tests.unit.cli.commands import Terminal

ROOT = Path(__file__).parents[3]
PIPELINES = ROOT / "infra" / "pipelines"
TOOLKIT = ("--toolkit", "https://example.com/simple/")
WORKFLOWS = sorted((PIPELINES / "github").glob("*.yml"))
SPECIFICATIONS = sorted((PIPELINES / "codepipeline").glob("buildspec-*.yml"))
PINNED = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
EVENTS = {"push", "pull_request", "schedule", "workflow_dispatch"}
JOB = {
    "concurrency", "env", "environment", "if", "needs", "permissions", "runs-on", "steps",
    "strategy", "timeout-minutes",
}  # fmt: skip
STEP = {"env", "id", "if", "name", "run", "uses", "with"}
SCOPES = {"contents": {"read"}, "id-token": {"write"}, "pull-requests": {"write"}}
CONTEXTS = {"github", "matrix", "needs", "steps", "vars", "env"}
IMAGE_SOURCE = "$CODEBUILD_SRC_DIR_Image"
NOT_HERE = (("bench",),)
"""Commands that need a load generator: only their options are parsed here."""


def peagle_words(text: str) -> tuple[list[str], str | None]:
    """A command line without ``peagle``, and the file that it writes. It must be one command."""
    first = text.split(" || ")[0].replace("$ENDPOINT", "chat").replace(IMAGE_SOURCE, ".")
    words = shlex.split(first)
    assert words.pop(0) == "peagle", text
    file = words[words.index(">") + 1] if ">" in words else None
    return (words[: words.index(">")] if file else words), file


def all_commands() -> list[str]:
    """Every ``peagle`` command of every pipeline, each once."""
    texts = [run for path in WORKFLOWS for _, run in run_steps(path)]
    texts += [text for path in SPECIFICATIONS for text in build_commands(path)]
    rescue = re.findall(r"&& (peagle [^;]+);", "\n".join(texts))
    return sorted({text for text in (*texts, *rescue) if text.startswith("peagle ")})


@pytest.fixture
def repository(terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A repository made by ``peagle ci init``, which serves the tiny pair, and its account; the
    base of the pull request, checked out into ``base``, has no project file yet."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base").mkdir()
    for kind in ("github", "codepipeline"):
        assert in_process("ci", "init", kind, *TOOLKIT).code == 0
    file = tmp_path / "peagle.yaml"
    text = file.read_text(encoding="utf-8").replace("gpt-oss-20b", "tiny")
    file.write_text(text.replace("  region:", "  instance_type: ml.g5.xlarge\n  region:"), "utf-8")
    terminal.cloud.quotas["ml.g5.xlarge for endpoint usage"] = 20
    return terminal


def run(terminal: Terminal, text: str) -> Done:
    words, file = peagle_words(text)
    terminal.cloud.log.clear()  # it is that of all endpoints
    done = terminal.run(*words)
    if file:
        Path(file).write_text(done.out, encoding="utf-8")
    return done


def succeeds(terminal: Terminal, text: str) -> None:
    done = run(terminal, text)
    assert (text, done.code) == (text, 0), done.err + done.out


@pytest.mark.thorough
def test_an_image_that_is_not_configured_is_a_document_too(repository: Terminal) -> None:
    (text,) = (text for text in all_commands() if text.startswith("peagle image build"))
    done = run(repository, text)
    assert json.loads(done.out) == {"pushed": None, "next": None}
    assert not Path("image.txt").exists()


@pytest.mark.thorough
def test_a_later_push_replaces_the_comment_of_the_endpoint(tmp_path: Path) -> None:
    """Its own, not that of another endpoint or of a person who quotes it."""
    scripts = dict(run_steps(PIPELINES / "github" / "peagle-pull-request.yml"))
    comments = tmp_path / "comments.json"
    program = tmp_path / "gh"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {gh.__file__} "$@"\n', "utf-8")
    program.chmod(0o755)
    quoted = {"id": 7, "user": {"login": "a-person"}, "body": "<!-- peagle plan of chat -->\nmine"}
    comments.write_text(json.dumps([quoted]))
    for endpoint, plan in (("chat", "K=8"), ("chat-2", "K=3"), ("chat", "K=5")):
        (tmp_path / "plan.md").write_text(plan)
        variables = {
            "PATH": f"{tmp_path}:{os.environ['PATH']}", "COMMENTS": str(comments), "NUMBER": "12",
            "GH_REPO": "acme/models", "ENDPOINT": endpoint,
        }  # fmt: skip
        script = ["bash", "-ec", scripts["Comment"]]
        subprocess.run(script, cwd=tmp_path, env=variables, check=True)
    assert [comment["body"] for comment in json.loads(comments.read_text())] == [
        quoted["body"],
        "<!-- peagle plan of chat -->\nK=5",
        "<!-- peagle plan of chat-2 -->\nK=3",
    ]


def is_here(text: str) -> bool:
    words = tuple(peagle_words(text)[0])
    return not any(words[: len(start)] == start for start in NOT_HERE)


@pytest.mark.thorough
def test_a_change_goes_through_the_workflows(repository: Terminal) -> None:
    """Pull request, staging, production, another pull request that costs more, a night."""
    commands = {
        path.stem: [
            step for step in run_steps(path) if step[1].startswith("peagle ") and is_here(step[1])
        ]
        for path in WORKFLOWS
    }
    for name in ("peagle-pull-request", "peagle-deploy"):
        for step, text in commands[name]:
            if step != "Roll back":
                succeeds(repository, text)
    assert "| instance type | - | ml.g5.xlarge |" in Path("plan.md").read_text("utf-8")
    served = dict(repository.cloud.endpoints)
    assert set(served) == {"peagle-chat-staging", "peagle-chat-production"}
    assert run(repository, "peagle drift chat -e production").code == 0
    before = Path("peagle.yaml").read_text("utf-8")
    Path("base/peagle.yaml").write_text(before, "utf-8")
    changed = before.replace("k: 5", "k: 3")
    Path("peagle.yaml").write_text(changed.replace("g5.x", "g5.12x"), "utf-8")
    plan = dict(commands["peagle-pull-request"])["Plan and cost"]
    assert run(repository, plan).code == 3
    assert "| k | 5 | 3 |" in Path("plan.md").read_text("utf-8")
    assert run(repository, dict(commands["peagle-nightly"])["Drift"]).code == 3
    Path("peagle.yaml").write_text(changed, "utf-8")
    for _, text in commands["peagle-deploy"]:
        succeeds(repository, text)
    Path("peagle.yaml").write_text(before, "utf-8")  # the last step has rolled back to it
    repository.cloud.now += 10 * 3600
    for _, text in commands["peagle-nightly"]:
        succeeds(repository, text)
    assert set(repository.cloud.endpoints) == {"peagle-chat-production"}


@pytest.mark.thorough
def test_a_change_goes_through_the_build_specifications(repository: Terminal) -> None:
    for stage in ("plan", "staging", "production", "nightly"):
        for text in build_commands(PIPELINES / "codepipeline" / f"buildspec-{stage}.yml"):
            if text.startswith("peagle ") and is_here(text):
                succeeds(repository, text)
    assert json.loads(Path("plan.json").read_text("utf-8"))["name"] == "peagle-chat-production"


def test_the_approval_of_codepipeline_shows_the_change_and_its_price(tmp_path: Path) -> None:
    path = PIPELINES / "codepipeline" / "buildspec-plan.yml"
    plan = "| speculation | K=5 | K=3 |\n\n**Cost**: $1.41 per hour"
    stub = f"git() {{ false; }}; peagle() {{ printf '%s\\n' '{plan}' '{'x' * 2000}'; }}"
    script = "\n".join([stub, *read(path)["phases"]["build"]["commands"], "printenv CHANGE"])
    done = subprocess.run(["bash", "-ec", script], cwd=tmp_path, capture_output=True, check=True)
    shown = done.stdout.decode().splitlines()[-1]
    assert shown.startswith("| speculation | K=5 | K=3 |  **Cost**: $1.41 per hour x")
    assert len(shown) == 900, "an approval shows 1,000 characters"
    assert read(path)["env"]["exported-variables"] == ["CHANGE"]
    template = (PIPELINES / "codepipeline" / "pipeline.yaml").read_text("utf-8")
    assert 'CustomData: "#{Plan.CHANGE}"' in template
    assert "- Name: Plan\n              Namespace: Plan\n" in template


DIGEST = f"sha256:{'a' * 64}"


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["github", "codepipeline"])
def test_an_image_is_deployed_by_its_digest_where_the_project_says_so(
    repository: Terminal, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest from the registry reaches staging and production without a manual step."""
    built: list[str] = []

    def build(aws: Any, order: codebuild.BuildRequest, *_: Any) -> tuple[str, str]:
        address = f"{ACCOUNT}.dkr.ecr.us-east-1.amazonaws.com/{order.repository}"
        built.append(f"{address}@{DIGEST}")
        repository.cloud.digests[order.tag] = DIGEST  # the push
        return f"{address}:{order.tag}", DIGEST

    monkeypatch.setattr("peagle.aws.images.build_remotely", build)
    file = Path("peagle.yaml")
    file.write_text(file.read_text("utf-8").replace("k: 5", "k: 5\n    build_image: true"), "utf-8")
    assert "add --image-from FILE" in repository.run("deploy", "chat", "-e", "staging", "--yes").err
    if kind == "github":
        texts = [text for _, text in run_steps(PIPELINES / "github" / "peagle-deploy.yml")]
    else:
        files = (f"buildspec-{stage}.yml" for stage in ("staging", "production"))
        texts = [text for file in files for text in build_commands(PIPELINES / kind / file)]
    for text in texts:
        if text.startswith("peagle ") and is_here(text) and 'rollback "' not in text[:20]:
            succeeds(repository, text)
    assert len(built) == 1
    images = {model["PrimaryContainer"]["Image"] for model in repository.cloud.models.values()}
    assert (len(repository.cloud.endpoints), images) == (2, set(built))
    assert run(repository, "peagle drift chat -e production").code == 0


@pytest.mark.parametrize(("changed", "proved", "called"), [
    (True, True, ["deploy", "prove"]),
    (True, False, ["deploy", "prove", "rollback"]),
    (False, False, ["deploy", "prove"]),
])  # fmt: skip
def test_a_build_rolls_back_only_what_it_has_changed(
    tmp_path: Path, changed: bool, proved: bool, called: list[str]
) -> None:
    path = PIPELINES / "codepipeline" / "buildspec-production.yml"
    stub = f"""peagle() {{
        echo "$1" >> called
        if [ "$1" = deploy ]; then echo '{json.dumps({"changed": changed})}'; fi
        [ "$1" != prove ] || {str(proved).lower()}
    }}"""
    script = "\n".join([stub, *read(path)["phases"]["build"]["commands"]])
    done = subprocess.run(["bash", "-ec", script], cwd=tmp_path, capture_output=True, check=False)
    assert (tmp_path / "called").read_text().split() == called, done.stderr
    assert done.returncode == (0 if proved else 3)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_is_valid_and_has_few_permissions(path: Path) -> None:
    text, document = path.read_text("utf-8"), read(path)
    assert set(document) == {"name", True, "permissions", "concurrency", "jobs"}  # on reads as true
    assert set(document[True]) <= EVENTS
    assert document["permissions"] == {}
    assert document["concurrency"].keys() == {"group", "cancel-in-progress"}
    for job in document["jobs"].values():
        assert set(job) <= JOB
        assert {"runs-on", "steps", "timeout-minutes", "permissions"} <= set(job)
        assert all(value in SCOPES[scope] for scope, value in job["permissions"].items())
        assert set(_listed(job.get("needs"))) <= set(document["jobs"])
        for step in job["steps"]:
            assert set(step) <= STEP
            assert ("run" in step) != ("uses" in step)
            assert "${{" not in step.get("run", ""), "an expression in a script can be injected"
    for line in re.findall(r"uses: (.*)", text):
        assert PINNED.fullmatch(line), line
    for expression in re.findall(r"\$\{\{ (.*?) \}\}", text):
        assert re.match(r"\w+", expression)[0] in CONTEXTS  # type: ignore[index]
    assert "secrets." not in text


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else value or []


@pytest.mark.thorough
def test_the_template_of_the_pipeline_has_no_findings() -> None:
    from cfnlint.api import lint_file  # the import takes a second, and each worker collects

    assert lint_file(PIPELINES / "codepipeline" / "pipeline.yaml") == []
