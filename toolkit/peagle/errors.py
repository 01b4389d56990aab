"""Every error that a user can encounter. Any other exception is a bug and shows a traceback.

Exit codes: UserError 2, Refused and DamagedCheckpoint 3, CloudError and EngineError 4.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from peagle_serve.json_reader import InvalidJson


@dataclass(frozen=True)
class Fix:
    """A remedy: a sentence and, where one exists, a complete command as argv; or the ``options``,
    such as ``--k 5``, that replace those of the user's own command."""

    sentence: str
    command: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


def use_option(flag: str, value: object, more: str = "", verb: str = "use") -> Fix:
    """``use --k 5``, with ``more`` behind it: the option replaces that of the user's command."""
    return Fix(f"{verb} {flag} {value}{more}", options=(flag, str(value)))


def combine_fixes(fixes: Iterable[Fix]) -> Fix:
    """One fix with the sentences of all, and the command or options of the first that has some."""
    offered = tuple(fixes)
    first = next((fix for fix in offered if fix.command or fix.options), Fix(""))
    return Fix("; or ".join(fix.sentence for fix in offered), first.command, first.options)


def command_line(command: Iterable[str]) -> str:
    """``command`` quoted for a shell, in printable characters: others as in bash's ``$'\\x07'``."""
    return " ".join(map(_quoted, command))


def _quoted(word: str) -> str:
    return shlex.quote(word) if word.isprintable() else f"$'{''.join(map(_escaped, word))}'"


def _escaped(character: str) -> str:
    if character.isprintable():
        return f"\\{character}" if character in "\\'" else character
    return "".join(f"\\x{byte:02x}" for byte in character.encode(errors="surrogateescape"))


def fix_text(fix: str, command: Sequence[str] | None) -> str:
    """The fix as text: the sentence, and the command quoted for a shell."""
    if not command:
        return fix
    if not fix:
        return command_line(command)
    return f"{fix}{' ' if fix.endswith('?') else ': '}{command_line(command)}"


class PeagleError(Exception):
    """An error that a user can fix.

    ``message`` and ``fix`` are one line each. ``code`` identifies the kind of error for programs:
    callers compare codes or classes, not text.
    """

    exit_code = 1
    code = "error"

    def __init_subclass__(cls, code: str = "", exit_code: int = 0) -> None:
        cls.code = code or cls.code
        cls.exit_code = exit_code or cls.exit_code

    def __init__(self, message: str, fix: str | Fix = "", code: str = "") -> None:
        remedy = fix if isinstance(fix, Fix) else Fix(fix)
        self.message = " ".join(message.split())
        self.fix = " ".join(remedy.sentence.split())
        self.command: Sequence[str] = remedy.command
        self.options = remedy.options
        self.code = code or type(self).code
        super().__init__(str(self))

    @property
    def remedy(self) -> Fix:
        """The fix as it was given."""
        return Fix(self.fix, tuple(self.command), self.options)

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


class UserError(PeagleError, code="usage", exit_code=2):
    """The user asked for something impossible.
    Fix: correct the option, the name or the file that the message names."""


class OptionsConflict(UserError, code="conflicting-options"):
    """Options that exclude each other, or that do not apply to what was given.
    Fix: leave out one of those that the message names."""


class OptionMissing(UserError, code="missing-option"):
    """What was given needs another option, which is missing.
    Fix: add the option that the message names."""


class OutOfRange(UserError, code="out-of-range"):
    """A number or a time outside of what is possible.
    Fix: use a value within the limits that the message names."""


class CatalogError(UserError, code="catalog"):
    """A catalogue file is wrong; the message names file and key."""


class CheckpointError(UserError, code="checkpoint"):
    """config.json or weights cannot be read; the message names place and key.
    Fix: copy the model again, or name the folder, prefix or id that has it."""


class DamagedCheckpoint(CheckpointError, exit_code=3):
    """config.json or weights were read, and are damaged or incomplete."""


class HubFailed(CheckpointError, code="hub-failed", exit_code=4):
    """The Hugging Face Hub is unreachable or fails; a later attempt may succeed."""


class NotFound(UserError, code="not-found"):
    """An unknown pair, instance type, endpoint, ...
    Fix: use one of the names that the error suggests, or list them."""


class PlanFileError(UserError, code="plan-file"):
    """A plan file is unreadable, or contradicts itself.
    Fix: create the plan again from its pair and options."""


class VerdictFileError(UserError, code="verdict-file"):
    """A verdict file is unreadable, contradicts itself, or is about something else.
    Fix: create the verdict again for this pair, GPU and load."""


class EngineMissing(UserError, code="engine-missing"):
    """vLLM is not installed on this machine."""


class DockerMissing(UserError, code="docker-missing"):
    """The Docker daemon does not respond on this machine."""


class Refused(PeagleError, code="refused", exit_code=3):
    """A check failed before anything was created.
    Fix: change what the message names"""


class NotProved(Refused, code="not-proved"):
    """The endpoint answers, but its drafts are not accepted."""


class Unsupported(Refused, code="unsupported"):
    """The format, registry or engine cannot do this; the message names one that can, if any.
    Fix: use one that can."""


class CloudError(PeagleError, code="cloud", exit_code=4):
    """AWS rejected a request or failed. ``code`` is the service's own, where one exists.
    Fix: run the command again, which continues; what AWS rejected is in its own message"""

    rejected = False
    """Whether AWS rejected the request, so that it changed nothing."""


class EngineError(PeagleError, code="engine", exit_code=4):
    """The engine ended, or never became healthy.
    Fix: read the decisive line of its log, which the error names."""


class EngineFailed(EngineError, code="engine-failed"):
    """The engine, or the server of ``--url``, answers a request with an error of its own.
    Fix: read its log, for which the error has the command where one exists."""


class InvalidResponse(EngineError, code="invalid-response"):
    """The response does not have vLLM's format.
    Fix: read the engine's log."""


@contextmanager
def fixed_by(find: Callable[[], Fix]) -> Iterator[None]:
    """Give an EngineError of the block that has no fix the one that ``find`` returns."""
    try:
        yield
    except EngineError as error:
        if not error.fix:
            fix = find()
            error.fix, error.command = fix.sentence, fix.command
        raise


@contextmanager
def parsing(
    what: str, kind: type[PeagleError], fix: str | Fix = "", code: str = "invalid-response"
) -> Iterator[None]:
    """Raise ``kind`` where the block fails to parse ``what``, the output of another program. The
    block must only parse: any other error in it is reported as invalid output."""
    try:
        yield
    except (
        ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError,
    ) as error:  # fmt: skip
        if isinstance(error, PeagleError):
            raise
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, KeyError):
            reason = f"it has no {error}"
        elif isinstance(error, InvalidJson):
            reason = str(error)
        raise kind(f"{what} has an unknown format: {reason[:300]}", fix, code) from error


def to_count(value: Any) -> int:
    """The value, if it is an integer from 0 to 2**63 - 1. Raises ValueError."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{ascii(value)[:40]} is not a count")
    return value


def nearest(name: str, candidates: Iterable[str]) -> str:
    """A hint with the known names nearest to ``name``: ``did you mean a, b?``; empty if none."""
    matches = close_matches(name, candidates)
    return f"did you mean {', '.join(matches)}?" if matches else ""


def close_matches(name: str, candidates: Iterable[str]) -> list[str]:
    """At most three known names: those close to ``name``, the closest first, else those that begin
    with it."""
    from difflib import get_close_matches  # takes a while to load, and few commands need it

    by_lower = {candidate.lower(): candidate for candidate in candidates}
    matches = get_close_matches(name.lower(), list(by_lower), n=3, cutoff=0.5)
    matches = matches or [each for each in by_lower if name and each.startswith(name.lower())][:3]
    return [by_lower[match] for match in matches]
