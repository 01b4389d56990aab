"""What a check has to say of an option, a file or a pair."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Level = Literal["error", "warning", "note"]
"""An error keeps everybody from creating anything; a warning is read first; a note is good to
know."""


class Finding(BaseModel):
    """What a check has to say: ``where`` names the option, file or key; ``fix`` mends it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    code: str
    level: Level
    where: str
    message: str
    fix: str


def error(code: str, where: str, message: str, fix: str) -> Finding:
    """A finding because of which nothing is created."""
    return Finding(code=code, level="error", where=where, message=message, fix=fix)


def warning(code: str, where: str, message: str, fix: str) -> Finding:
    """A finding that the user should know before anything is created."""
    return Finding(code=code, level="warning", where=where, message=message, fix=fix)


def note(code: str, where: str, message: str, fix: str) -> Finding:
    """A finding that is good to know."""
    return Finding(code=code, level="note", where=where, message=message, fix=fix)
