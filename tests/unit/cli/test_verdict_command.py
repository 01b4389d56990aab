"""``peagle verdict``: what a user sees, the document, the file, and bad options."""

import json
from pathlib import Path

import pytest

from peagle.render.verdict_file import read_verdict
from tests.support import Done, in_process
from tests.unit.cli.commands import Terminal

SMALL = ("gpt-oss-20b", "--vllm", "0.26.0", "--concurrency", "1,8,64")


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def peagle(*arguments: str) -> Done:
    return in_process("verdict", *arguments)


@pytest.mark.thorough
def test_the_whole_catalogue_has_verdicts() -> None:
    for pair in ("gpt-oss-20b", "gpt-oss-120b", "qwen3-8b", "qwen3-coder-30b", "gemma-4-31b"):
        done = peagle(pair, "--gpu", "H200")
        assert done.code == 0, done.err
        assert "What would change it" in done.out


@pytest.mark.thorough
def test_the_document_is_the_file(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    done = peagle(*SMALL, "--gpu", "H200", "--json", "-o", str(path))
    assert done.code == 0
    assert done.document == json.loads(path.read_text())
    assert done.err == f"wrote {path}\n"
    assert [load.concurrency for load in read_verdict(path).workloads[0].loads] == [1, 8, 64]


def test_the_next_command_has_a_load_that_the_file_covers(tmp_path: Path) -> None:
    load = ("--concurrency", "100", "--prompt-tokens", "8k", "--output-tokens", "500")
    command = ("gpt-oss-20b", "--gpu", "H200", *load, "-o", str(tmp_path / "v.json"))
    last = peagle(*command).out.splitlines()[-1]
    assert "--concurrency 100 --prompt-tokens 8192 --output-tokens 500 --verdict" in last


def test_a_model_that_does_not_fit_is_refused() -> None:
    done = peagle("gpt-oss-120b", "--instance-type", "ml.g5.xlarge")
    assert done.code == 3
    assert "does not fit on 1 x A10G" in done.error


@pytest.mark.thorough
def test_deploy_takes_drafter_and_k_from_the_file(terminal: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    size = ("--prompt-tokens", "1k", "--output-tokens", "256")
    load = ("--gpu", "A10G", "--concurrency", "8", *size)
    terminal.succeeds("verdict", "tiny", *load, "-o", str(path))
    best = read_verdict(path).at(None, 8)[1].best
    assert best is not None
    chosen = ("--instance-type", "ml.g5.xlarge", "--verdict", str(path))
    done = terminal.succeeds("deploy", "tiny", *chosen, "--yes", "--json")
    assert (done.document["k"] or 0) == best.k
