"""`peagle plan --weights-by stream`: what is shown, written, refused, and asked again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from peagle.cli.main import cli
from peagle.errors import PeagleError, UserError

SOURCES = ("--model-source", "s3://bucket/tiny/target/", "--drafter", "s3://bucket/tiny/drafter/")
STREAM = ("--weights-by", "stream")


def run(command: str, *arguments: str) -> Result:
    settings: dict[str, str | None] = {"AWS_REGION": None, "AWS_DEFAULT_REGION": None}
    return CliRunner().invoke(cli, [command, *arguments], env=settings)


def document(*arguments: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(run("plan", *arguments, "--json").stdout)
    return made


def test_the_next_command_streams_too() -> None:
    assert "deploy tiny" in (shown := run("plan", "tiny", *SOURCES, *STREAM).output)

    assert "--weights-by stream" in " ".join(shown.split())


def test_weights_by_mount_is_the_default() -> None:
    assert document("tiny", *SOURCES) == document("tiny", *SOURCES, "--weights-by", "mount")


def test_a_plan_on_a_runtime_without_a_streamer_is_shown_and_not_written(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    arguments = ("tiny", *SOURCES, *STREAM, "--vllm", "0.27.1", "--out", str(file))

    done = run("plan", *arguments)

    assert isinstance(done.exception, PeagleError)
    assert done.exception.exit_code == 3
    assert "vLLM 0.27.1 is not known to contain the Run:ai model streamer" in done.exception.message
    assert "--vllm 0.28.0" in done.exception.fix
    assert not file.exists()


def test_a_whole_plan_has_no_place_for_it(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    run("plan", "tiny", *SOURCES, "--out", str(file))

    done = run("plan", str(file), *STREAM)

    assert isinstance(done.exception, UserError)
    assert "--weights-by cannot be combined" in done.exception.message


@pytest.mark.parametrize("format", ["cloudformation", "terraform", "dockerfile"])
def test_every_format_can_say_it(format: str, tmp_path: Path) -> None:
    done = run("render", format, "tiny", *SOURCES, *STREAM, "-o", str(tmp_path / "out"))

    assert done.exit_code == 0, done.output
    texts = [file.read_text() for file in (tmp_path / "out").rglob("*") if file.is_file()]
    words = "--weights-by stream" if format == "dockerfile" else "runai_streamer"
    assert any(words in text for text in texts)
