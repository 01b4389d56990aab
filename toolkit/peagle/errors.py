"""Every error that a user can meet, in one tree.

    PeagleError                  what happened, where, and how to fix it
    ├── UserError           2    an impossible request
    │   ├── CatalogError         a catalogue file is wrong
    │   ├── CheckpointError      config.json or weights are unreadable or damaged
    │   │   └── HubFailed   4    the Hugging Face hub does not answer
    │   ├── NotFound             an unknown pair, instance type, endpoint, ...
    │   ├── PlanFileError        a plan file is unreadable or contradicts itself
    │   ├── EngineMissing        vLLM is not installed on this machine
    │   └── DockerMissing        no Docker engine answers
    ├── Refused             3    a check found an error before anything was created
    │   ├── NotProved            the endpoint answers, but its drafts are not accepted
    │   └── Unsupported          a renderer cannot express the plan; the message names another
    ├── CloudError          4    AWS (or the sandbox) refused or failed
    └── EngineError         4    vLLM ended or never became healthy

The number is the exit code. Anything that is not a PeagleError is a bug and shows a traceback.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any


@dataclass(frozen=True)
class Fix:
    """A remedy: a sentence and, where one exists, a complete command as argv."""

    sentence: str
    command: tuple[str, ...] = ()


def fix_text(fix: str, command: Sequence[str] | None) -> str:
    """The fix as text: the sentence, and the command quoted for a shell."""
    if not command:
        return fix
    return f"{fix}: {shlex.join(command)}" if fix else shlex.join(command)


class PeagleError(Exception):
    """An error that a user can fix.

    ``message`` says what happened and where; ``fix`` is a sentence and ``command``, where one
    exists, a complete command as argv. Message and fix are one line each. ``code`` identifies the
    kind of error for programs; callers compare codes or classes, never text.
    """

    exit_code = 1
    code = "error"

    def __init__(self, message: str, fix: str | Fix = "", code: str = "") -> None:
        remedy = fix if isinstance(fix, Fix) else Fix(fix)
        self.message = " ".join(message.split())
        self.fix = " ".join(remedy.sentence.split())
        self.command: Sequence[str] = remedy.command
        self.code = code or type(self).code
        self.as_json = False
        """Whether the command that failed was asked for JSON."""
        super().__init__(str(self))

    def __str__(self) -> str:
        fix = fix_text(self.fix, self.command)
        return f"{self.message} ({fix})" if fix else self.message

    def document(self) -> dict[str, Any]:
        """The error as ``--json`` prints it."""
        return {
            "code": self.code,
            "message": self.message,
            "fix": self.fix,
            "command": list(self.command) or None,
            "exit_code": self.exit_code,
        }


class UserError(PeagleError):
    """The user asked for something impossible."""

    exit_code = 2
    code = "usage"


class CatalogError(UserError):
    """A catalogue file is wrong; the message names file and key."""

    code = "catalog"


class CheckpointError(UserError):
    """config.json or weights are unreadable or damaged; the message names place and key."""

    code = "checkpoint"


class HubFailed(CheckpointError):
    """The hub is unreachable, does not answer or fails; a later attempt may succeed."""

    exit_code = 4
    code = "hub-failed"


class NotFound(UserError):
    """Something named by the user does not exist."""

    code = "not-found"


class PlanFileError(UserError):
    """A plan file is truncated, not a plan, or contradicts itself."""

    code = "plan-file"


class EngineMissing(UserError):
    """vLLM is not installed on this machine."""

    code = "engine-missing"


class DockerMissing(UserError):
    """No Docker engine answers on this machine."""

    code = "docker-missing"


class Refused(PeagleError):
    """A check refused before anything was created."""

    exit_code = 3
    code = "refused"


class NotProved(Refused):
    """The endpoint answers, but speculation was not seen to work."""

    code = "not-proved"


class Unsupported(Refused):
    """A renderer cannot express the plan."""

    code = "unsupported"


class CloudError(PeagleError):
    """AWS refused. ``code`` is the service's own error code, where one exists."""

    exit_code = 4
    code = "cloud"


class EngineError(PeagleError):
    """The engine ended, or never became healthy."""

    exit_code = 4
    code = "engine"


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint with the known names nearest to ``name``: ``did you mean a, b?``; empty if none."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    found = get_close_matches(name.lower(), list(by_lower), n=3, cutoff=0.5)
    return f"did you mean {', '.join(by_lower[match] for match in found)}?" if found else ""
