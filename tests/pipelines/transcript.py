"""What ran, in a file as it happens."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.pipelines.jobs import StepOutput

_LONGEST = 40
_EDGE = 16
"""Lines of an output: of a longer one the transcript has the first and the last."""


@dataclass
class Transcript:
    """A transcript in ``path`` of a run in ``folder``. ``failed`` is the last line of what failed
    last."""

    path: Path
    folder: Path
    source: str = ""
    failed: str = ""
    began: float = field(default_factory=time.monotonic)

    def line(self, text: str) -> None:
        """Add a line, without the folder of the run and the user's own."""
        for folder in (str(self.folder), str(self.folder).replace("_", r"\_")):  # in Markdown
            text = text.replace(folder, "RUN")
        text = text.replace(f"{Path.home()}/", "~/")
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")
        print(text, flush=True)

    def heading(self, text: str) -> None:
        """Begin a part of the run."""
        self.source = ""
        self.line(f"\n== {text} (after {(time.monotonic() - self.began) / 60:.1f} min)")

    def show(self, one: StepOutput) -> None:
        """Add a command and its output."""
        if self.source != one.source:
            self.source = one.source
            self.line(f"\n-- {one.source}")
        if one.name:
            self.line(f"# {one.name}")
        for command in one.commands.strip().splitlines():
            self.line(f"$ {command}")
        lines = one.output.rstrip().splitlines()
        if len(lines) > _LONGEST:
            left = len(lines) - 2 * _EDGE
            lines = [*lines[:_EDGE], f"[{left} lines]", *lines[-_EDGE:]]
        for line in lines:
            self.line(line)
        if one.code:
            self.failed = lines[-1] if lines else ""
            self.line(f"exit code {one.code}")
