"""Commands of the toolkit in a sandbox that meet faults, and what must be true after each."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from peagle.sandbox.client import add_fault, clear_faults, list_faults
from tests.faults.account import NAME, Inventory, Resources
from tests.faults.calls import (
    LATE_SECONDS,
    interrupt_here,
    kill_here,
    on_call,
    run_apart,
    short_timeouts,
)
from tests.sandbox.clients import own_clients
from tests.sandbox.sandboxes import Sandbox
from tests.support import Done, in_process

FAULTS = ("access-denied", "throttling", "internal-error", "reset-before", "answer-lost", "timeout")
KILLS = ("killed-before", "killed-after")
INTERRUPTS = ("interrupted-before", "interrupted-after")
STUCK = "stuck-creating"
LOW = "1.1"
"""An acceptance length below every floor."""
_ENDS = (0, 2, 3, 4, 130)
"""Exit codes that the toolkit documents, and that of Ctrl-C."""


class Broken(AssertionError):
    """A promise that does not hold."""


@dataclass(frozen=True)
class Fault:
    """What the ``call``-th call of ``operation`` meets, and the ``times - 1`` after it; ``None``:
    all after it. ``kind`` is one of the sandbox's, or ends the command."""

    operation: str
    kind: str
    call: int = 1
    times: int | None = 1

    @property
    def name(self) -> str:
        number = f"#{self.call}" if self.call > 1 else ""
        return f"{self.operation}{number}/{self.kind}/{'once' if self.times else 'always'}"


class Commands:
    """Runs commands in one sandbox with a stub engine, and compares what they report with the
    account."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.inventory = Inventory(sandbox)
        self.empty = self.inventory.resources()

    def peagle(self, command: Sequence[str]) -> Done:
        """Run a command without faults."""
        return in_process(*command, "--sandbox", "--json", environment=self.sandbox.environment)

    def with_faults(self, command: Sequence[str], faults: Sequence[Fault]) -> Done | None:
        """Run a command that meets ``faults``; ``None`` when it was killed. Faults of endpoints,
        such as one that is stuck, go on until ``clear``. Raises Broken for an undocumented end."""
        if any(fault.kind in KILLS for fault in faults):
            code, done = run_apart(partial(self._met, command, faults))
            if code not in (0, -signal.SIGKILL):
                raise Broken(f"{_text(command)} ended with a traceback")
        else:
            done = self._met(command, faults)
        if done and done.code not in _ENDS:
            raise Broken(f"{_text(command)} ended with {done.code}: {done.error}")
        return done

    def _met(self, command: Sequence[str], faults: Sequence[Fault]) -> Done:
        def at(moment: str, operation: str, call: int) -> None:
            for fault in faults:
                if (fault.operation, fault.call) == (operation, call):
                    _apply(fault, moment)

        with own_clients(), short_timeouts(), on_call(partial(at, "before"), partial(at, "after")):
            return self.peagle(command)

    def has_met(self, fault: Fault) -> bool:
        """Whether a call of the sandbox met the fault, before ``clear``."""
        with self.sandbox.at_home():
            return any(
                each.seen and (each.operation, each.kind) == (fault.operation, fault.kind)
                for each in list_faults()
            )

    def clear(self) -> None:
        """Remove all faults; what they hold up goes on."""
        with self.sandbox.at_home():
            clear_faults()

    @contextmanager
    def conditions(self, acceptance: str = "", scarce: str = "") -> Iterator[None]:
        """Engines that accept so many tokens, and no capacity of the instance type ``scarce``."""
        (package,) = self.sandbox.engine.parent.glob("packages/vllm/entrypoints/openai")
        file = Path(package) / "acceptance"
        if acceptance:
            file.write_text(acceptance)
        if scarce:
            with self.sandbox.at_home():
                for operation in ("CreateEndpoint", "UpdateEndpoint"):
                    add_fault(operation, "insufficient-capacity", None, scarce)
        try:
            yield
        finally:
            file.unlink(missing_ok=True)
            self.clear()

    def expect_success(self, command: Sequence[str]) -> Done:
        done = self.peagle(command)
        if done.code:
            raise Broken(f"{_text(command)} ended with {done.code}: {done.error}")
        return done

    def nothing_is_lost(self, others: Resources = frozenset()) -> dict[str, Any] | None:
        """Raise Broken unless every resource is shown, but those that are ``others'``, and the
        reported cost is the account's; what ``status`` says."""
        self.inventory.wait_until_stable()
        status = self.status()
        shown = _shown(status)
        existing = self.inventory.resources() - self.empty - others - shown
        folders = tuple(name for kind, name in shown if kind == "S3Objects")
        lost = {resource for resource in existing if not resource[1].startswith(folders)}
        if lost:
            raise Broken(f"exists, and is not shown: {sorted(lost)}")
        self.cost_is_right()
        return status

    def cost_is_right(self) -> None:
        """The reported cost is the account's. What changes meanwhile is compared once stable."""
        before = self.inventory.states()
        actual = self.inventory.usd_per_hour()
        listed = self.expect_success(("list",)).document["deployments"]
        reported = round(sum(row["price_per_hour_usd"] or 0.0 for row in listed), 4)
        if reported != actual and self.inventory.states() == before:
            raise Broken(f"costs ${actual} per hour, reported as ${reported}")

    def status(self) -> dict[str, Any] | None:
        """The document of ``status``; ``None`` without a deployment."""
        done = self.peagle(("status", NAME))
        document: dict[str, Any] | None = None if done.code else done.document
        return document


def _shown(status: dict[str, Any] | None) -> Resources:
    """The resources that ``status`` shows, and the buckets that they are in."""
    shown = {(each["type"], each["name"]) for each in status["resources"]} if status else set()
    used = {
        ("S3Bucket", name.removeprefix("s3://").partition("/")[0])
        for kind, name in shown
        if kind == "S3Objects"
    }
    return frozenset(shown | used)


def _apply(fault: Fault, moment: str) -> None:
    """Let the fault happen, at the moment before or after a call."""
    kind, _, when = fault.kind.rpartition("-")
    if kind in ("killed", "interrupted"):
        if when == moment:
            (kill_here if kind == "killed" else interrupt_here)()
    elif moment == "before":
        add_fault(fault.operation, fault.kind, fault.times, seconds=LATE_SECONDS)


def _text(command: Sequence[str]) -> str:
    return f"peagle {' '.join(command)}"
