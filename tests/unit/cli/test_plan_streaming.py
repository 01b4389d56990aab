"""`weights_by: stream` of peagle.yaml: what `peagle plan` shows, writes and refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from peagle.cli.main import cli
from peagle.errors import PeagleError
from tests.support import with_keys

SOURCES = ("--model-source", "s3://bucket/tiny/target/", "--drafter", "s3://bucket/tiny/drafter/")


def streamed(folder: Path) -> tuple[str, ...]:
    """The words that name an endpoint whose weights are streamed."""
    return with_keys(folder, ("plan", "tiny", *SOURCES), weights_by="stream")[1:]


def run(command: str, *arguments: str) -> Result:
    settings: dict[str, str | None] = {"AWS_REGION": None, "AWS_DEFAULT_REGION": None}
    return CliRunner().invoke(cli, [command, *arguments], env=settings)


def test_a_plan_on_a_runtime_without_a_streamer_is_shown_and_not_written(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"

    done = run("plan", *streamed(tmp_path), "--vllm", "0.27.1", "--out", str(file))

    assert isinstance(done.exception, PeagleError)
    assert done.exception.exit_code == 3
    assert "--vllm 0.28.0" in done.exception.fix
    assert not file.exists()


@pytest.mark.parametrize("format", ["cloudformation", "terraform"])
def test_every_format_can_say_it(format: str, tmp_path: Path) -> None:
    done = run("render", format, *streamed(tmp_path), "-o", str(tmp_path / "out"))

    assert done.exit_code == 0, done.output
    texts = [file.read_text() for file in (tmp_path / "out").rglob("*") if file.is_file()]
    assert any("runai_streamer" in text for text in texts)
