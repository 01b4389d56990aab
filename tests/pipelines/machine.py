"""What the run needs around the workflows: a wheel, and machines with it."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.pipelines.jobs import StepOutput

ROOT = Path(__file__).resolve().parents[2]
PERSON = {
    f"GIT_{who}_{what}": text
    for who in ("AUTHOR", "COMMITTER")
    for what, text in (("NAME", "An engineer"), ("EMAIL", "engineer@example.com"))
}


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout into the folder."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder)]
    subprocess.run([*pip, str(ROOT)], check=True)
    return next(folder.glob("peagle_toolkit-*.whl"))


def install(folder: Path, wheel: Path, extra: str = "") -> Path:
    """A new virtual environment with the wheel; the folder of its programs."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", f"{wheel}{extra}"], check=True)
    return folder / "bin"


@dataclass(frozen=True)
class Machine:
    """A folder with a git repository, and programs in ``bin``; ``show`` gets what ran."""

    name: str
    folder: Path
    bin: Path
    environment: Mapping[str, str]
    show: Callable[[StepOutput], None]

    def run(self, command: str, code: int = 0) -> str:
        """Run a command line, show it, and return what it prints. Raises RunFailed for another exit
        code."""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env={
                **os.environ,
                **PERSON,
                **self.environment,
                "PATH": f"{self.bin}:{os.environ['PATH']}",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        text = done.stdout + done.stderr
        self.show(StepOutput(self.name, "", command, text, done.returncode))
        if done.returncode != code:
            raise RunFailed(f"{command}: exit code {done.returncode} instead of {code}")
        return done.stdout

    def read(self, command: str) -> Any:
        """The JSON document that a command prints."""
        return json.loads(self.run(command))

    def git(self, *words: str) -> str:
        """Run git without showing it; what it prints."""
        done = subprocess.run(
            ["git", *words],
            cwd=self.folder,
            env={**os.environ, **PERSON},
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()


class RunFailed(Exception):
    """A step did not end as it must."""


def random_head(source: Path, target: Path, seed: int = 1) -> None:
    """A copy of a head in bfloat16 whose weights are random numbers: vLLM loads it, and none of its
    drafts are accepted."""
    shutil.copytree(source, target)
    file = target / "model.safetensors"
    content = file.read_bytes()
    begin = 8 + int(struct.unpack("<Q", content[:8])[0])
    numbers = random.Random(seed)
    high = (struct.pack("<f", numbers.gauss(0, 0.05))[2:] for _ in range(begin, len(content), 2))
    file.write_bytes(content[:begin] + b"".join(high))
