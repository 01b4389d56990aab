"""The jobs and steps of a workflow of GitHub Actions, and the commands of a build specification."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True)
class Step:
    """One step: it runs commands (``run``), or an action (``uses``) with ``inputs``."""

    name: str
    run: str
    uses: str
    inputs: Mapping[str, Any]
    environment: Mapping[str, str]
    condition: str
    id: str

    @property
    def action(self) -> str:
        """The action without its commit, such as ``actions/checkout``."""
        return self.uses.partition("@")[0]


@dataclass(frozen=True)
class Job:
    """One job. ``matrix`` has the values of each of its runs."""

    name: str
    needs: tuple[str, ...]
    condition: str
    environment: Mapping[str, str]
    approved_by: str
    matrix: tuple[Mapping[str, str], ...]
    steps: tuple[Step, ...]


def read(path: Path) -> dict[Any, Any]:
    """The document of a workflow, a build specification or a template."""
    document: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return document


def jobs(path: Path) -> tuple[Job, ...]:
    """The jobs of a workflow, each after those that it needs."""
    return tuple(_job(name, content) for name, content in read(path)["jobs"].items())


def run_steps(path: Path) -> Iterator[tuple[str, Step]]:
    """Every step of a workflow that runs commands, with the name of its job."""
    for job in jobs(path):
        yield from ((job.name, step) for step in job.steps if step.run)


def build_commands(path: Path) -> Iterator[str]:
    """Every command of a build specification."""
    for phase in read(path)["phases"].values():
        yield from phase["commands"]


def _job(name: str, content: Mapping[str, Any]) -> Job:
    needs = content.get("needs") or ()
    matrix = (content.get("strategy") or {}).get("matrix") or {}
    return Job(
        name,
        (needs,) if isinstance(needs, str) else tuple(needs),
        content.get("if", ""),
        content.get("env") or {},
        content.get("environment", ""),
        tuple(dict(zip(matrix, values, strict=True)) for values in product(*matrix.values())),
        tuple(map(_step, content["steps"])),
    )


def _step(content: Mapping[str, Any]) -> Step:
    return Step(
        content.get("name", ""),
        content.get("run", ""),
        content.get("uses", ""),
        content.get("with") or {},
        content.get("env") or {},
        content.get("if", ""),
        content.get("id", ""),
    )
