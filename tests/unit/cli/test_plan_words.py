"""What a plan says in its verdict, findings and hints, of its arguments, and to the shell."""

import re
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from peagle.cli.main import cli
from tests.support import in_process


@pytest.mark.parametrize("more", [(), ("--verbose",)])
def test_a_load_above_the_context_has_neither_price_nor_speed(more: tuple[str, ...]) -> None:
    refused = in_process("plan", "tiny", "--workload", "agent", *more)
    assert (refused.code, "exceed the context" in refused.err) == (3, True)
    assert not re.search(r"\$|tokens/s|USD", refused.out)
    made = in_process("plan", "tiny", "--workload", "agent", "--json").document
    estimates = [made["speed"], made["without_speculation"], *made["alternatives"]]
    assert {estimate["basis"] for estimate in estimates} == {"unknown"}
    assert not any(estimate["usd_per_million_tokens"] for estimate in estimates)


@pytest.mark.parametrize(("words", "typed", "name"), [
    ((), "gpt-oss-20", "gpt-oss-20b"),
    ((), "gpt-oss-20b+p", "gpt-oss-20b+p-eagle"),
    (("gpt-oss-20b", "--profile", "of --online", "--compare"), "gpt-oss-12", "gpt-oss-120b"),
    (("gpt-oss-20b", "--name", "--region", "--compare"), "gpt-oss-12", "gpt-oss-120b"),
])  # fmt: skip
def test_shell_completes_names_of_catalogue(words: tuple[str, ...], typed: str, name: str) -> None:
    names = completions("plan", *words, typed)
    assert name in names
    assert all(name.startswith(typed) for name in names)


def test_completion_shows_no_errors(tmp_path: Path) -> None:
    (tmp_path / "instances.yaml").write_text("[")
    assert completions("--catalog", str(tmp_path), "plan", "gpt") == []


def completions(*words: str) -> list[str]:
    complete = ShellComplete(cli, {}, "peagle", "_PEAGLE_COMPLETE")
    return [item.value for item in complete.get_completions([*words[:-1]], words[-1])]
