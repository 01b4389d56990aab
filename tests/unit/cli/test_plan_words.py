"""What a plan says in its verdict, findings and hints, and that it is fit for pipes and shells."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from peagle.cli.main import cli
from peagle.errors import NotFound, Refused


def run(*arguments: str, **settings: str) -> Result:
    env = {"AWS_REGION": None, "AWS_DEFAULT_REGION": None, "COLUMNS": None, **settings}
    return CliRunner().invoke(cli, arguments, env=env)


def words(*arguments: str) -> str:
    return " ".join(run(*arguments).stdout.split())


@pytest.mark.parametrize("more", [(), ("--verbose",)])
def test_a_load_above_the_context_has_neither_price_nor_speed(more: tuple[str, ...]) -> None:
    refused = run("plan", "tiny", "--workload", "agent", *more)
    assert isinstance(refused.exception, Refused)
    assert "exceed the context" in refused.stdout
    assert not re.search(r"\$|tokens/s|USD", refused.stdout)
    made = json.loads(run("plan", "tiny", "--workload", "agent", "--json").stdout)
    estimates = [made["speed"], made["without_speculation"], *made["alternatives"]]
    assert {one["basis"] for one in estimates} == {"unknown"}
    assert not any(one["usd_per_million_tokens"] for one in estimates)


def test_a_word_that_is_a_folder_or_hf_gets_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    for word, expected_text in (("empty", "write ./empty"), ("hf", "omit it")):
        error = run("plan", "tiny", "--drafter", word).exception
        assert isinstance(error, NotFound)
        assert expected_text in error.fix


@pytest.mark.parametrize(
    ("words", "typed", "found"),
    [
        ((), "gpt-oss-20", "gpt-oss-20b"),
        ((), "gpt-oss-20b+p", "gpt-oss-20b+p-eagle"),
        (("tiny", "--instance-type"), "ml.g6e.x", "ml.g6e.xlarge"),
        (("tiny", "--vllm"), "0.28", "0.28.0"),
        (("tiny", "--region"), "eu-w", "eu-west-1"),
    ],
)
def test_the_shell_completes_names_of_the_catalogue(
    words: tuple[str, ...], typed: str, found: str
) -> None:
    names = completions("plan", *words, typed)
    assert found in names
    assert all(name.startswith(typed) for name in names)


def test_completion_shows_no_errors(tmp_path: Path) -> None:
    (tmp_path / "instances.yaml").write_text("[")
    assert completions("--catalog", str(tmp_path), "plan", "gpt") == []


def completions(*words: str) -> list[str]:
    complete = ShellComplete(cli, {}, "peagle", "_PEAGLE_COMPLETE")
    return [item.value for item in complete.get_completions([*words[:-1]], words[-1])]
