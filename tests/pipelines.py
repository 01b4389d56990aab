"""The steps of a workflow of GitHub Actions, and the commands of a build specification."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml


def read(path: Path) -> dict[Any, Any]:
    """The document of a workflow, a build specification or a template."""
    document: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return document


def run_steps(path: Path) -> Iterator[tuple[str, str]]:
    """Name and text of every step of a workflow that runs commands."""
    for job in read(path)["jobs"].values():
        yield from ((step.get("name", ""), step["run"]) for step in job["steps"] if "run" in step)


def build_commands(path: Path) -> Iterator[str]:
    """Every command of a build specification."""
    for phase in read(path)["phases"].values():
        yield from phase["commands"]
