"""Where recorded command lines run: a folder with files to name, and an environment of its own."""

import json
import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.golden.commands.outline import Outline, outline, read_messages
from tests.support import Done, in_process
from tests.unit.catalog.catalog_files import GOOD, write_target
from tests.unit.checks.damage import Damage, damaged, tiny

GEOMETRY = Path(__file__).parents[3] / "model_catalog" / "configs"
OWN_VARIABLES = ("AWS_", "DOCKER_", "HF_", "HUGGING_FACE_", "PEAGLE_", "SM_VLLM_", "XDG_")
"""What such variables say differs from one machine to the next."""
DAMAGES = {
    "no-mask": Damage(drop=("mask_hidden",)),
    "no-mask-id": Damage(drop_keys=("ptd_token_id",)),
    "other-width": Damage(set_keys={"hidden_size": 512}),
    "other-vocabulary": Damage(set_keys={"vocab_size": 2048}),
    "no-fc": Damage(drop=("fc.weight",)),
    "no-json": Damage(text="{"),
}
"""Folder below ``heads`` -> what is wrong with the P-EAGLE head in it."""


class Workplace:
    """A folder in which command lines run; what they write below ``out`` goes after each.

    ``tiny``      the parts of the tiny pair; ``heads``: P-EAGLE heads of it, damaged
    ``geometry``  config.json of the large pairs
    ``own``       a catalogue with acme/chat-7b; ``wrong``: one with errors
    ``*.jsonl``   chats: with answers, and questions alone
    ``*.json``    plans: good, for another region, truncated, edited, and no plan
    """

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        nothing = folder / "nothing"
        kept = {n: value for n, value in os.environ.items() if not n.startswith(OWN_VARIABLES)}
        self.environment = {
            **kept,
            "AWS_CONFIG_FILE": str(nothing / "config"),
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_SHARED_CREDENTIALS_FILE": str(nothing / "credentials"),
            "HF_HUB_OFFLINE": "1",
            "HOME": str(folder),
            "PEAGLE_HOME": str(folder / "home"),
            **(settings or {"PATH": str(nothing)}),  # where no Docker is
        }

    def furnish(self) -> None:
        """Write the files that command lines name."""
        for part in ("target", "p-eagle", "eagle3"):
            shutil.copytree(tiny(part), self.folder / "tiny" / part)
        for name, damage in DAMAGES.items():
            damaged(tiny("p-eagle"), self.folder / "heads" / name, damage)
        shutil.copytree(GEOMETRY, self.folder / "geometry")
        write_target(self.folder / "own")
        write_target(self.folder / "wrong", GOOD.replace("k_trained: 8", "k_trained: ten"))
        (self.folder / "empty").mkdir()
        (self.folder / "a-file").write_text("mine")
        question = {"role": "user", "content": "What is a list? " * 20}
        answer = {"role": "assistant", "content": "A list holds values. " * 20}
        for name, more in (("chats", [answer]), ("questions", [])):
            chats = (
                {"messages": [{**question, "content": f"{n} {question['content']}"}, *more]}
                for n in range(40)
            )
            lines = "".join(f"{json.dumps(chat)}\n" for chat in chats)
            (self.folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
        self._write_plans()

    def _write_plans(self) -> None:
        for name, line in {
            "plan.json": "plan tiny --out plan.json",
            "west.json": "plan gpt-oss-20b --region us-west-2 --k 3 --out west.json",
        }.items():
            done = self.run(line)
            assert done.code == 0, f"{name}: {done.err}"
        text = (self.folder / "plan.json").read_text(encoding="utf-8")
        (self.folder / "truncated.json").write_text(text[: len(text) // 2], encoding="utf-8")
        edited = text.replace('"k": 7', '"k": 4')
        (self.folder / "edited.json").write_text(edited, encoding="utf-8")
        (self.folder / "no-plan.json").write_text('{"hello": 1}', encoding="utf-8")
        newer = {**json.loads(text), "format": 99}
        (self.folder / "newer.json").write_text(json.dumps(newer), encoding="utf-8")

    def run(self, line: str) -> Done:
        """Run a command line without the word ``peagle``; ``NAME=value`` may stand before it."""
        words = shlex.split(line)
        variables: dict[str, str] = {}
        while words and "=" in words[0] and not words[0].startswith("-"):
            name, _, value = words.pop(0).partition("=")
            variables[name] = value
        return in_process(*words, environment={**self.environment, **variables}, folder=self.folder)

    def outline(self, line: str) -> tuple[Outline, dict[str, dict[str, Any]]]:
        """Run a command line; how it ended, and its messages by code. What it wrote below ``out``
        is removed."""
        out = self.folder / "out"
        out.mkdir()
        try:
            done = self.run(line)
            files = [path for path in out.rglob("*") if path.is_file()]
        finally:
            shutil.rmtree(out)
        writes = sorted(path.relative_to(self.folder).as_posix() for path in files)
        texts = {
            name: getattr(done, name).replace(str(self.folder), ".") for name in ("out", "err")
        }
        done = replace(done, **texts)
        return outline(done, writes), read_messages(done)
