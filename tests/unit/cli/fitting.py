"""``peagle fit`` as a user types it, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from peagle.cli.main import cli
from peagle.errors import Refused

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


def changed(tmp_path: Path, name: str, part: str, **numbers: int) -> str:
    """A copy of that geometry with other numbers."""
    config = json.loads((GEOMETRY / name / part / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | numbers))
    return str(tmp_path)


def refused(*arguments: str) -> Any:
    """What is shown of a case that the checks refuse: the fit all the same."""
    result = peagle(*arguments, "--json")
    assert isinstance(result.exception, Refused), result.output
    fit = json.loads(result.stdout)
    assert fit["weights_gib"] > 0
    assert fit["findings"][0]["level"] == "error"
    return {finding["code"] for finding in fit["findings"]}
