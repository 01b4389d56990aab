"""What can be set of the entrypoint itself, by ``PEAGLE_*`` variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from serve.errors import WrongEnvironment

DRAIN_VARIABLE = "PEAGLE_DRAIN_SECONDS"
RESTARTS_VARIABLE = "PEAGLE_RESTARTS"


class Settings(NamedTuple):
    """``drain_seconds``: how long requests that run may still take after SIGTERM; 60, as long as
    InvokeEndpoint waits. ``restarts``: how often within an hour an engine that crashed is started
    again, if it had been healthy."""

    drain_seconds: int = 60
    restarts: int = 3


def settings_of(environment: Mapping[str, str]) -> Settings:
    """The settings. Raises WrongEnvironment for one that is no whole number from 0 up."""
    default = Settings()
    return Settings(
        _number(environment, DRAIN_VARIABLE, default.drain_seconds),
        _number(environment, RESTARTS_VARIABLE, default.restarts),
    )


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, str(default)).strip()
    if not (text.isascii() and text.isdigit()):
        raise WrongEnvironment(f"{name} is {text!r}", "a whole number from 0 up is needed")
    return int(text)
