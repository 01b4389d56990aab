"""The one error of the entrypoint.

What can be set of the entrypoint itself, by ``PEAGLE_*`` variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class WrongEnvironment(Exception):
    """The environment cannot be served. ``fix`` says how to mend it; both are one line."""

    def __init__(self, message: str, fix: str) -> None:
        self.message = " ".join(message.split())
        self.fix = " ".join(fix.split())
        super().__init__(f"{self.message} ({self.fix})")


DRAIN_VARIABLE = "PEAGLE_DRAIN_SECONDS"
RESTARTS_VARIABLE = "PEAGLE_RESTARTS"
WARM_VARIABLE = "PEAGLE_WARM"

AUTO = "auto"
COLLECT = "collect"
OFF = "off"


class Settings(NamedTuple):
    """``drain_seconds``: how long requests that run may still take after SIGTERM; 60, as long as
    InvokeEndpoint waits. ``restarts``: how often within an hour an engine that crashed is started
    again, if it had been healthy. ``warm``: ``auto`` starts from what another engine compiled where
    it fits, ``collect`` compiles everything and offers it, ``off`` does neither (see ``warm``)."""

    drain_seconds: int = 60
    restarts: int = 3
    warm: str = AUTO


def settings_of(environment: Mapping[str, str]) -> Settings:
    """The settings. Raises WrongEnvironment for a value that is none.

    An engine that compiles for others is not started again: its second start would not be cold.
    """
    default = Settings()
    warm = environment.get(WARM_VARIABLE, default.warm).strip().lower() or default.warm
    if warm not in (AUTO, COLLECT, OFF):
        raise WrongEnvironment(f"{WARM_VARIABLE} is {warm!r}", f"{AUTO}, {COLLECT} or {OFF}")
    restarts = _number(environment, RESTARTS_VARIABLE, default.restarts)
    return Settings(
        _number(environment, DRAIN_VARIABLE, default.drain_seconds),
        0 if warm == COLLECT else restarts,
        warm,
    )


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, str(default)).strip()
    if not (text.isascii() and text.isdigit()):
        raise WrongEnvironment(f"{name} is {text!r}", "a whole number from 0 up is needed")
    return int(text)
