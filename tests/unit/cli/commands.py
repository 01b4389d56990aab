"""``peagle`` in this process, against an account in memory."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from tests.unit.aws.cloud import Cloud
from tests.unit.aws.world import World
from toolkit.aws.session import Aws
from toolkit.aws.watch import Clock
from toolkit.catalog import load_catalog
from toolkit.cli.cloud import Account
from toolkit.cli.main import main
from toolkit.planning import Options, make_plan

NAME = "peagle-tiny"
FIRST = ("deploy", "tiny", "--instance-type", "ml.g5.xlarge")


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """What ``--json`` printed."""
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The last line on stderr, which must be the only error."""
        lines = self.err.splitlines()
        assert sum(line.startswith("error:") for line in lines) <= 1
        return lines[-1] if lines else ""


def price_of(instance_type: str = "ml.g5.xlarge") -> float | None:
    """USD per hour in us-east-1, as the catalogue has it today."""
    return make_plan(
        Options(pair="tiny", instance_type=instance_type), load_catalog()
    ).price_per_hour_usd


def price_shown() -> str:
    """How commands show the price of ``FIRST``."""
    price = price_of()
    assert price is not None
    return f"${price:,.2f} per hour, ${price * 24:,.2f} per day"


class Terminal:
    """Runs commands as somebody would type them; ``world`` is the account they reach."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.world = World()
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    @property
    def cloud(self) -> Cloud:
        """The account."""
        return self.world.cloud

    def run(self, *arguments: str, stdin: bytes | None = None, answers: str | None = None) -> Done:
        """``stdin`` is a pipe, ``answers`` are typed on a terminal."""
        typed = answers.encode() if answers is not None else stdin or b""
        with self._monkeypatch.context() as patch:
            patch.setattr(Account, "connect", lambda account, region: self._connect(region))
            patch.setattr(Clock, "now", lambda clock: self.cloud.now)
            patch.setattr(Clock, "sleep", lambda clock, seconds: self._sleep(seconds))
            patch.setattr(sys, "argv", ["peagle", *arguments])
            stream = io.TextIOWrapper(io.BytesIO(typed), encoding="utf-8")
            patch.setattr(stream, "isatty", lambda: answers is not None)
            patch.setattr(sys, "stdin", stream)
            self._capsys.readouterr()
            with pytest.raises(SystemExit) as ended:
                main()
        captured = self._capsys.readouterr()
        return Done(int(ended.value.code or 0), captured.out, captured.err)

    def _connect(self, region: str) -> Aws:
        aws = self.world.aws
        aws.region = region
        return aws

    def _sleep(self, seconds: float) -> None:
        self.cloud.now += seconds
