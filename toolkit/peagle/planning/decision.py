"""What every step of planning returns: a value, why it was chosen, and what is to be said of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from peagle.findings import Finding
from peagle.planning.plan import Reason

T = TypeVar("T")


@dataclass(frozen=True)
class Choice(Generic[T]):
    """A chosen value. ``reasons`` is empty when the user chose; ``findings`` when all is well."""

    value: T
    reasons: tuple[Reason, ...] = ()
    findings: tuple[Finding, ...] = ()


def chosen(value: T, what: str, because: str, shown: str | None = None) -> Choice[T]:
    """A value that was chosen for the user; ``shown`` is how the reason writes it."""
    text = str(value) if shown is None else shown
    return Choice(value, reasons=(Reason(what=what, value=text, because=because),))
