"""Every error that a user can meet, in one tree.

    PeagleError                  what happened, where, and how to mend it
    ├── UserError           2    something that the user asked for cannot be
    │   ├── CatalogError         a catalogue file is wrong
    │   ├── CheckpointError      a model's config.json or weights cannot be read, or are damaged
    │   │   └── HubFailed   4    ... since the hub does not answer, which nobody asked wrongly
    │   ├── NotFound             a pair, instance type, endpoint ... that is not there
    │   ├── PlanFileError        a plan file that cannot be read or does not agree with itself
    │   ├── EngineMissing        no vLLM on this machine
    │   └── DockerMissing        no Docker engine answers
    ├── Refused             3    a check found an error before anything was created
    │   ├── NotProved            the endpoint answers, but drafts are not accepted as they should be
    │   └── Unsupported          a renderer cannot express the plan; the message names another way
    ├── CloudError          4    AWS (or the sandbox) said no
    └── EngineError         4    vLLM ended or never became healthy

The number is the exit code. Anything that is not a PeagleError is a bug and shows a traceback.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class PeagleError(Exception):
    """An error that a user can mend.

    ``message`` says what happened and where, ``fix`` how to mend it; both are one line.
    """

    exit_code = 1

    def __init__(self, message: str, fix: str = "") -> None:
        self.message = " ".join(message.split())
        self.fix = " ".join(fix.split())
        super().__init__(str(self))

    def __str__(self) -> str:
        return f"{self.message} ({self.fix})" if self.fix else self.message


class UserError(PeagleError):
    """The user asked for something that cannot be."""

    exit_code = 2


class CatalogError(UserError):
    """A catalogue file is wrong; the message names file and key."""


class CheckpointError(UserError):
    """config.json or weights cannot be read, or are damaged; the message names place and key."""


class HubFailed(CheckpointError):
    """The hub cannot be reached, does not answer or fails: later the same may go well."""

    exit_code = 4


class NotFound(UserError):
    """Something named by the user does not exist."""


class PlanFileError(UserError):
    """A plan file is cut short, not a plan, or does not agree with itself."""


class EngineMissing(UserError):
    """vLLM is not installed on this machine."""


class DockerMissing(UserError):
    """No Docker engine answers on this machine."""


class Refused(PeagleError):
    """A check refused before anything was created."""

    exit_code = 3


class NotProved(Refused):
    """The endpoint answers, but speculation was not seen to work."""


class Unsupported(Refused):
    """A renderer cannot express the plan."""


class CloudError(PeagleError):
    """AWS said no. ``code`` is the service's own error code, when there is one."""

    exit_code = 4

    def __init__(self, message: str, fix: str = "", code: str = "") -> None:
        super().__init__(message, fix)
        self.code = code


class EngineError(PeagleError):
    """The engine ended, or never became healthy."""

    exit_code = 4


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint with the known names nearest to ``name``: ``did you mean a, b?``; empty if none."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    found = get_close_matches(name.lower(), list(by_lower), n=3, cutoff=0.5)
    return f"did you mean {', '.join(by_lower[match] for match in found)}?" if found else ""
