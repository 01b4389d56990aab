"""``peagle fit`` as a user types it, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from toolkit.cli.main import cli

GEOMETRY = Path(__file__).parents[2] / "geometry"
H200 = ("--gpu-memory-gib", "139.8")


def peagle(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["fit", *arguments])


def answer(*arguments: str) -> Any:
    result = peagle(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def folder(name: str, part: str = "target") -> str:
    return str(GEOMETRY / name / part)


def shown(*arguments: str) -> Any:
    """The fit, whether it is one or is refused."""
    return json.loads(peagle(*arguments, "--json").stdout)
