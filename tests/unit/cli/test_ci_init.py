"""``peagle ci init`` writes files for the project that it finds, and never replaces the user's."""

import json
import re
import zipfile
from pathlib import Path

import pytest

from peagle import __version__
from peagle import project as pipelines
from tests.support import in_process
from tests.unit.cli.test_pipelines import TOOLKIT, WORKFLOWS


@pytest.mark.thorough
def test_init_fills_in_the_project_and_the_roles(tmp_path: Path) -> None:
    (tmp_path / "peagle.yaml").write_text(
        "environments: {staging: {}, production: {}}\n"
        "endpoints: {search: {pair: tiny}, code: {pair: tiny}}\n"
    )
    done = in_process(
        "ci", "init", "github", *TOOLKIT, "--repository", "acme/models", "--account",
        "123456789012",
        "--json", folder=tmp_path,
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "peagle.yaml" not in done.document["files"]
    text = (tmp_path / ".github/workflows/peagle-deploy.yml").read_text()
    assert text.count("endpoint: [search, code]") == 3
    trust = (tmp_path / "iam/github-oidc-trust.json").read_text()
    assert "repo:acme/models:environment:production" in trust
    assert "arn:aws:iam::123456789012:oidc-provider/" in trust


def test_init_never_overwrites_without_force(tmp_path: Path) -> None:
    assert in_process("ci", "init", "github", *TOOLKIT, folder=tmp_path).code == 0
    file = tmp_path / ".github/workflows/peagle-nightly.yml"
    file.write_text("mine")
    (tmp_path / "iam/deploy-policy.json").write_text("mine")
    done = in_process("ci", "init", "github", *TOOLKIT, folder=tmp_path)
    assert done.code == 2
    assert done.error.startswith("error: .github/workflows/peagle-nightly.yml would be replaced")
    assert file.read_text() == "mine"
    assert in_process("ci", "init", "github", *TOOLKIT, "--force", folder=tmp_path).code == 0
    assert file.read_text() != "mine"
    assert (tmp_path / "iam/deploy-policy.json").read_text() == "mine"


@pytest.mark.parametrize("words", [
    ("--account", "1234"), ("--account", "my-account"), ("--account", "1234567890123"),
    ("--repository", "models"), ("--repository", "https://github.com/acme/models"),
    ("--repository", "acme/models/*"),
])  # fmt: skip
def test_an_account_and_a_repository_have_their_form(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    done = in_process("ci", "init", "github", *TOOLKIT, *words, "--json", folder=tmp_path)
    assert (done.code, done.refusal["code"]) == (2, "usage")
    assert not [*tmp_path.iterdir()]


def test_each_variable_of_the_workflows_is_in_the_next_steps(tmp_path: Path) -> None:
    steps = " ".join(
        in_process("ci", "init", "github", *TOOLKIT, "--json", folder=tmp_path).document["next"]
    )
    used = {name for path in WORKFLOWS for name in re.findall(r"vars\.(\w+)", path.read_text())}
    assert "AWS_IMAGE_ROLE" in used
    assert [name for name in used if name not in steps] == []


def test_the_schema_beside_the_file_is_that_of_the_command(tmp_path: Path) -> None:
    assert in_process("ci", "init", "github", *TOOLKIT, folder=tmp_path).code == 0
    first = (tmp_path / "peagle.yaml").read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=./peagle.schema.json"
    written = json.loads((tmp_path / "peagle.schema.json").read_text())
    assert written == in_process("ci", "schema").document


DIGEST = "sha256=" + "a" * 64
WHEEL = "wheels/peagle_toolkit-0.1.0-py3-none-any.whl"


def installs(folder: Path) -> set[str]:
    """What the workflows give to ``pip install``."""
    texts = [path.read_text() for path in (folder / ".github/workflows").iterdir()]
    return {arguments for text in texts for arguments in re.findall(r"pip install (.+)", text)}


@pytest.mark.parametrize(("source", "installed"), [
    (WHEEL, WHEEL),
    (f"https://example.com/p.whl#{DIGEST}", f"'https://example.com/p.whl#{DIGEST}'"),
    ("https://example.com/simple/",
     f"--index-url https://example.com/simple/ peagle-toolkit=={__version__}"),
])  # fmt: skip
def test_pipeline_installs_toolkit_from_source(tmp_path: Path, source: str, installed: str) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / WHEEL).touch()
    assert in_process("ci", "init", "github", "--toolkit", source, folder=tmp_path).code == 0
    assert installs(tmp_path) == {installed}


@pytest.mark.parametrize("source", [
    "peagle-toolkit",
    "https://user:secret@example.com/simple/",
])  # fmt: skip
def test_a_source_that_a_pipeline_cannot_trust_is_refused(tmp_path: Path, source: str) -> None:
    done = in_process("ci", "init", "github", "--toolkit", source, folder=tmp_path)
    assert done.code == 2
    assert done.error.startswith("error: --toolkit ")
    assert "secret" not in done.out + done.err
    assert not (tmp_path / ".github").exists()


def test_installed_toolkit_needs_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "checkout_folder", lambda: None)
    done = in_process("ci", "init", "github", folder=tmp_path)
    assert done.code == 2
    assert "where to install the toolkit from" in done.error


@pytest.mark.thorough
def test_from_a_checkout_the_wheel_is_beside_the_pipeline(tmp_path: Path) -> None:
    assert in_process("ci", "init", "github", folder=tmp_path).code == 0
    (wheel,) = (tmp_path / "wheels").iterdir()
    assert installs(tmp_path) == {f"./wheels/{wheel.name}"}
    assert zipfile.is_zipfile(wheel)
