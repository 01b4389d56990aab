"""What is wrong with a catalogue file: where, what was expected, what was found, how to mend it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.errors import CatalogError

Location = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. ``key`` is a path such as ``drafters[2].k_trained``, or empty."""

    file: str
    line: int | None
    key: str
    message: str
    fix: str

    @property
    def where(self) -> str:
        """File and line."""
        return f"{self.file}:{self.line}" if self.line else self.file

    @property
    def text(self) -> str:
        """Everything but the fix, as one sentence."""
        return ": ".join(part for part in (self.where, self.key, self.message) if part)


class BadFile(Exception):
    """A file could not even be turned into data; caught inside this room."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.text)
        self.problem = problem


def dotted(location: Location) -> str:
    """A location as people write it: ``drafters[2].k_trained``."""
    text = ""
    for step in location:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def catalog_error(problems: Sequence[Problem]) -> CatalogError:
    """The first problem as an error; it says where to see the others."""
    first, *others = problems
    more = f"{len(others)} more: see `peagle catalog check`" if others else ""
    return CatalogError(first.text, "; ".join(part for part in (first.fix, more) if part))
