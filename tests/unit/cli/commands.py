"""``peagle`` in this process, against an account in memory."""

from functools import cache

import pytest

from peagle.account import Account, default_region
from peagle.aws.client import Aws, Clock
from peagle.catalog import load_catalog
from peagle.planning import Options, make_plan
from tests.support import Done, in_process
from tests.unit.aws.cloud import Cloud, service_error
from tests.unit.aws.world import READING, World

NAME = "peagle-tiny"
FIRST = ("deploy", "tiny", "--instance-type", "ml.g5.xlarge")


@cache
def find_price(instance_type: str = "ml.g5.xlarge") -> float | None:
    """USD per hour in us-east-1, as the catalogue has it today."""
    return make_plan(
        Options(pair="tiny", instance_type=instance_type), load_catalog()
    ).price_per_hour_usd


def price_shown() -> str:
    """How commands show the price of ``FIRST``."""
    price = find_price()
    assert price is not None
    return f"${price:,.2f} per hour, ${price * 24:,.2f} per day"


def _region(account: Account, region: str | None = None) -> str:
    return region or account.region or default_region()


class Terminal:
    """Runs commands as a user types them; ``world`` is the account they reach."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = World()
        self._monkeypatch = monkeypatch

    @property
    def cloud(self) -> Cloud:
        """The account."""
        return self.world.cloud

    def run(self, *arguments: str, stdin: bytes | None = None, answers: str | None = None) -> Done:
        """``stdin`` is a pipe, ``answers`` are typed on a terminal."""
        typed = answers.encode() if answers is not None else stdin or b""
        with self._monkeypatch.context() as patch:
            patch.setattr(Account, "aws", lambda *chosen: self._connect(_region(*chosen)))
            patch.setattr(Clock, "now", lambda clock: self.cloud.now)
            patch.setattr(Clock, "sleep", lambda clock, seconds: self._sleep(seconds))
            return in_process(*arguments, stdin=typed, terminal=answers is not None)

    def succeeds(self, *arguments: str, answers: str | None = None) -> Done:
        """As ``run``, of a command that must end with 0."""
        done = self.run(*arguments, answers=answers)
        assert done.code == 0, done.err
        return done

    def rejects(self, operation: str, code: str = "AccessDenied", status: int = 403) -> None:
        """From now on AWS answers ``operation`` with this error."""
        name = "".join(part.capitalize() for part in operation.split("_"))

        def reject(called: str) -> None:
            if called == operation:
                response = {"HTTPStatusCode": status}
                raise service_error(code, "no", name, ResponseMetadata=response)

        self.cloud.before = reject

    def interrupts(self, operation: str, after: bool = False) -> None:
        """From now on the user presses Ctrl-C before or after ``operation``."""

        def interrupt(called: str) -> None:
            if called == operation:
                raise KeyboardInterrupt

        setattr(self.cloud, "after" if after else "before", interrupt)

    def recovers(self) -> None:
        """AWS answers again, without an interrupt."""
        self.cloud.before = self.cloud.after = lambda called: None

    def _connect(self, region: str) -> Aws:
        aws = self.world.aws
        aws.region = region
        return aws

    def _sleep(self, seconds: float) -> None:
        self.cloud.now += seconds


def nothing_was_created(terminal: Terminal) -> bool:
    """Whether only reading requests were sent, and nothing exists or is on record."""
    looks = all(call.startswith(READING) for call in terminal.cloud.calls)
    return looks and terminal.cloud.is_empty and terminal.run("list").err == "No deployments.\n"


def without_record(terminal: Terminal) -> None:
    """Remove the record, as if something other than ``peagle deploy`` had created the endpoint."""
    from peagle.deploy import records

    ((record,), _) = records.readable_records("123456789012")
    records.remove_record(record)
