"""A target without a catalogue file: a folder, S3, or an id on the Hub."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import in_process
from tests.unit.checkpoints.fake_hub import REPO, FakeHub, running
from tests.unit.checks.cases import GEOMETRY
from tests.unit.checks.damage import tiny
from tests.unit.cli.commands import Terminal


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with a model that is not in the catalogue."""
    return Path(shutil.copytree(tiny("target"), tmp_path / "My Model"))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    """A Hub with that model."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    hub = FakeHub()
    hub.files = {path.name: path.read_bytes() for path in tiny("target").iterdir()}
    with running(hub):
        monkeypatch.setenv("HF_ENDPOINT", hub.hub.url)
        yield hub


def test_a_folder_is_planned_without_speculation(model: Path) -> None:
    done = in_process("plan", str(model), "--json")
    assert done.code == 0, done.err
    plan = done.document
    assert (plan["pair"], plan["name"]) == ("own/My-Model", "peagle-my-model")
    assert plan["speculation"] is None
    assert plan["target"]["weights"]["kind"] == "directory"
    (note,) = [f for f in plan["findings"] if f["code"] == "target-not-in-catalogue"]
    assert "unknown: licence" in note["message"]
    assert note["command"] == ["peagle", "catalog", "init", str(model)]


def tuned(folder: Path, short_name: str = "qwen3-coder-30b", **changes: object) -> Path:
    """A folder with the config.json of a fine-tuned copy of that target."""
    config = json.loads((GEOMETRY / short_name / "target/config.json").read_text())
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


def test_a_tuned_copy_may_use_the_head_of_its_base(tmp_path: Path) -> None:
    done = in_process("plan", str(tuned(tmp_path / "tuned")), "--json")
    notes = [f for f in done.document["findings"] if f["code"] == "no-head"]
    (base,) = [f["command"] for f in notes if "--online" in (f["command"] or ())]
    assert base[3:] == ["--drafter", "amazon/Qwen3-Coder-30B-A3B-Instruct-P-EAGLE", "--online"]
    head = GEOMETRY / "qwen3-coder-30b/p-eagle"
    with_head = in_process("plan", str(tmp_path / "tuned"), "--drafter", base[4], "--json")
    assert with_head.code == 2, "the head's method is unknown until it is read"
    assert in_process("check", str(tmp_path / "tuned"), "--drafter", str(head)).code == 0


@pytest.mark.parametrize("method", ["ngram", "NGRAM", "suffix"])
def test_a_folder_drafts_without_a_head(model: Path, method: str) -> None:
    done = in_process("plan", f"{model}+{method}", "--json")
    assert done.code == 0, done.err
    assert done.document["pair"] == f"own/My-Model+{method.lower()}"
    assert done.document["speculation"]["method"] == method.lower()
    assert "no-head" not in {f["code"] for f in done.document["findings"]}


def test_a_drafter_that_no_own_target_has_names_those_that_it_may_have(model: Path) -> None:
    done = in_process("plan", f"{model}+eagle3")
    assert done.code == 2
    assert f"{model}+ngram" in done.err


@pytest.mark.thorough
def test_a_model_on_the_hub_is_read_online_only(terminal: Terminal, hub: FakeHub) -> None:
    offline = terminal.run("plan", REPO, "--concurrency", "4")
    assert offline.code == 2
    command = f"peagle plan {REPO} --online"
    assert f"to read it from the Hub: {command})" in offline.err.strip() + ")"
    assert hub.requests == []
    done = terminal.succeeds(*shlex.split(command)[1:], "--json")
    assert done.document["pair"] == REPO
    assert done.document["target"]["weights"]["kind"] == "hub"


@pytest.mark.thorough
@pytest.mark.parametrize("command", [("plan", "--online"), ("deploy", "--yes")])
def test_a_head_on_the_hub_is_read_for_an_own_target(
    terminal: Terminal, hub: FakeHub, model: Path, command: tuple[str, str]
) -> None:
    hub.files = {path.name: path.read_bytes() for path in tiny("eagle3").iterdir()}
    name, *flags = command
    words = (str(model), "--drafter", REPO, "--instance-type", "ml.g5.xlarge", *flags)
    done = terminal.succeeds(name, *words)
    assert "EAGLE-3" in done.out + done.err


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (("fit", REPO, "--k", "1"), f"peagle fit --target {REPO}"),
        (("check", REPO, "--k", "3"), f"peagle check {REPO} --target hf"),
        (
            ("render", "terraform", REPO, "-o", "x"),
            f"peagle plan {REPO} --online --output plan.json",
        ),
        (("plan", "s3://bkt/model/"), "peagle plan s3://bkt/model/ --online"),
    ],
)
def test_the_error_names_the_command_that_reads_it(words: tuple[str, ...], fix: str) -> None:
    done = in_process(*words)
    assert done.code == 2
    assert fix in done.err
    assert len(done.err.splitlines()) == 1


def test_a_folder_is_deployed(terminal: Terminal, model: Path) -> None:
    words = ("deploy", str(model), "--instance-type", "ml.g5.xlarge", "--yes")
    done = terminal.succeeds(*words)
    assert "peagle-my-model is InService" in done.out + done.err


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json"),
        (lambda folder: (folder / "config.json").write_text("{}"), "it has no"),
        (
            lambda folder: shutil.copy(tiny("p-eagle") / "config.json", folder),
            "holds a draft head, not a model",
        ),
    ],
)
def test_a_folder_that_cannot_be_planned_is_one_clear_error(
    make: object, message: str, model: Path
) -> None:
    make(model)  # type: ignore[operator]
    done = in_process("plan", str(model))
    assert done.code in (2, 3)
    assert message in done.err
    assert len(done.err.splitlines()) == 1
