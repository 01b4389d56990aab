"""``peagle render``: files appear whole, nothing is overwritten unasked, nothing is left out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from peagle.cli.main import cli
from peagle.errors import PeagleError, Unsupported, UserError


def run(*arguments: str) -> Result:
    settings = {"AWS_REGION": None, "AWS_DEFAULT_REGION": None}
    return CliRunner().invoke(cli, ["render", *arguments], env=settings)


def refusal(*arguments: str) -> PeagleError:
    done = run(*arguments)
    assert isinstance(done.exception, PeagleError), done.output
    return done.exception


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "README.md").write_text("mine too")
    error = refusal("terraform", "tiny", "-o", str(tmp_path))
    assert isinstance(error, UserError)
    assert "--force" in error.fix
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "mine.txt"]
    assert (tmp_path / "README.md").read_text() == "mine too"


def test_force_replaces_only_what_is_rendered(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "README.md").write_text("old")
    assert run("terraform", "tiny", "-o", str(tmp_path), "--force").exit_code == 0
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert (tmp_path / "README.md").read_text() != "old"
    assert (tmp_path / "main.tf").is_file()


def test_what_a_format_cannot_say_is_refused(tmp_path: Path) -> None:
    two = ["--model-source", "s3://models/qwen3-8b", "--drafter", "s3://heads/qwen3-8b"]
    error = refusal("cloudformation", "qwen3-8b", *two, "-o", str(tmp_path / "cfn"))
    assert isinstance(error, Unsupported)
    assert error.exit_code == 3
    assert list(tmp_path.iterdir()) == []
    assert run("terraform", "qwen3-8b", *two, "-o", str(tmp_path / "tf")).exit_code == 0


DUMMY_FORMAT = '''
"""Only a name."""

from peagle.render.files import text_file

FILES = ("name.txt",)


def unsupported(plan):
    return "" if plan.instance_count == 1 else "one instance at most"


def render(plan, catalog):
    return (text_file("name.txt", plan.name),)
'''
WITH_DUMMY = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
import peagle.render.formats as formats
formats.__path__.append(sys.argv[1])
from peagle.cli.main import main
ended = []
for words in json.loads(sys.argv[2]):
    sys.argv = ["peagle", "render", *words]
    with redirect_stdout(io.StringIO()) as printed, redirect_stderr(printed):
        try:
            main()
        except SystemExit as end:
            ended.append((end.code, printed.getvalue()))
print(json.dumps(ended))
"""
"""Runs `peagle render` for each list of words; prints exit codes and what was printed."""


@pytest.mark.thorough
def test_a_format_is_one_discovered_file(tmp_path: Path) -> None:
    folder = tmp_path / "formats"
    folder.mkdir()
    (folder / "nameplate.py").write_text(DUMMY_FORMAT)
    lines = [
        ["nameplate", "tiny", "--name", "mine", "-o", "out"],
        ["--help"],
        ["nothing", "tiny", "-o", "x"],
        ["nameplate", "tiny", "--instance-count", "2", "-o", "two"],
        ["cloudformation", "qwen3-8b", "--model-source", "s3://models/qwen3-8b",
         "--drafter", "s3://heads/qwen3-8b", "-o", "cf"],
    ]  # fmt: skip
    command = [sys.executable, "-c", WITH_DUMMY, str(folder), json.dumps(lines)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    made, described, unknown, refused, two_prefixes = json.loads(done.stdout)
    assert made[0] == 0, made
    assert (tmp_path / "out" / "name.txt").read_text() == "mine"
    assert "nameplate: name.txt" in described[1]
    assert "nameplate" in unknown[1]
    assert refused[0] == 3
    others = "cdk, cloudformation, hyperpod, kserve or terraform"
    assert f"use {others}" in refused[1]
    assert "nameplate" in two_prefixes[1]
