"""The command line accepts every command in the documents."""

import os
import re
import shlex
from contextlib import nullcontext
from pathlib import Path

import click
import pytest

from peagle.cli.context import PeagleCommand
from peagle.cli.main import cli
from tests.support import Peagle, bundled_evidence
from tests.unit.cli.test_help_examples import PROJECT

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "infra" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
FENCE = re.compile(r"^```(?:sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _shown_commands() -> list[str]:
    commands = []
    for document in DOCUMENTS:
        for block in FENCE.findall(document.read_text(encoding="utf-8")):
            joined = block.replace("\\\n", " ")
            for line in joined.splitlines():
                command = line.removeprefix("$ ").split(" #")[0].strip()
                if command.startswith("peagle "):
                    commands.append(command)
    return commands


@pytest.mark.parametrize("command", sorted(set(_shown_commands())))
def test_a_command_in_the_documents_is_accepted(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for catalog in ("my_catalog", "november/.catalog"):
        (tmp_path / catalog).mkdir(parents=True)
    (tmp_path / "peagle.yaml").write_text(PROJECT, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    reached: list[str] = []
    for kind in (click.Command, PeagleCommand):
        monkeypatch.setattr(kind, "invoke", lambda self, ctx: reached.append(self.name))
    words = shlex.split(command)[1:]
    cli.main(words, prog_name="peagle", standalone_mode=False)
    assert len(reached) >= 2, "only the group was invoked"


def test_what_the_guarantees_name_exists() -> None:
    """A renamed option, variable or finding would leave a guarantee about nothing."""
    named = re.findall(r"`(--[a-z0-9-]+|PEAGLE_[A-Z_]+|[a-z]+(?:-[a-z]+)+)[=`]",
                       (ROOT / "SECURITY.md").read_text(encoding="utf-8"))  # fmt: skip
    sources = [*ROOT.glob("toolkit/peagle/**/*.py"), *ROOT.glob("containers/peagle_serve/**/*.py")]
    text = "\n".join(file.read_text(encoding="utf-8") for file in sources)
    assert len(named) >= 2
    assert [name for name in named if name not in text] == []


@pytest.mark.thorough
@pytest.mark.parametrize("shown", [
    "$ peagle catalog list",
    "$ peagle check tiny+eagle3 --drafter model_catalog/peagle/tiny/p-eagle",
    "$ peagle fit gpt-oss-120b --gpu-memory-gib 79.2 --max-model-len 32768 --max-num-seqs 32",
    "$ peagle plan gpt-oss-20b --concurrency 10 --max-model-len 8k",
    "$ peagle plan gpt-oss-20b --verbose",
    "$ peagle verdict gpt-oss-20b --gpu H200 --prompt-tokens 2k --output-tokens 256 "
    "--concurrency 1,8,32,64,128,256",
])  # fmt: skip
def test_output_in_the_documents_is_what_the_command_prints(shown: str, peagle: Peagle) -> None:
    """Line by line in order, with ``...`` where lines were left out. The numbers of
    plans and verdicts are those of the bundled evidence, which changes more often: they are not
    compared."""
    plans = shown.startswith(("$ peagle plan", "$ peagle verdict"))
    command = shlex.split(shown)[2:]
    with bundled_evidence() if plans else nullcontext():
        done = peagle(*command, env={**os.environ, "COLUMNS": "120"}, cwd=ROOT)
    compared = _without_numbers if plans else str.rstrip
    shown_outputs = _outputs_shown(shown)
    assert shown_outputs
    for expected in shown_outputs:
        printed = iter([compared(line) for line in done.stdout.splitlines()])
        for line in expected:
            is_printed = line == "..." or compared(line) in printed
            assert is_printed, f"not printed, or not in this order: {line!r}"


def _outputs_shown(command: str) -> list[list[str]]:
    """What each block of the documents shows below this command."""
    text = "".join(document.read_text(encoding="utf-8") for document in DOCUMENTS)
    return [
        block[: block.index("\n```")].splitlines() for block in text.split(f"\n{command}\n")[1:]
    ]


def _without_numbers(line: str) -> str:
    return re.sub(r"[0-9][0-9,.]*", "0", line).rstrip()
