"""vLLM versions: ``0.28.0``, or ``0.28`` which means ``0.28.0``; and ranges of them.

A range is a list of comparisons that must all hold: ``>=0.18.0,<0.22.0``.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from functools import lru_cache

from peagle.errors import UserError

Parsed = tuple[int, int, int]

_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?", re.ASCII)
_COMPARISON = re.compile(r"(>=|<=|==|<|>)(.*)", re.DOTALL)
_OPERATORS: dict[str, Callable[[Parsed, Parsed], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}


@lru_cache
def parse(version: str) -> Parsed:
    """The three numbers of a version; raises UserError when it is not one."""
    match = _VERSION.fullmatch(version)
    if not match:
        raise UserError(
            f"{version!r} is not a vLLM version", "write it like 0.28.0", code="invalid-version"
        )
    return int(match[1]), int(match[2]), int(match[3] or 0)


@lru_cache
def normalize(version: str) -> str:
    """The version with all three numbers: ``0.28`` becomes ``0.28.0``."""
    return ".".join(str(number) for number in parse(version))


def compare(left: str, right: str) -> int:
    """-1 when ``left`` is the older version, 0 when they are the same, 1 when it is the newer."""
    a, b = parse(left), parse(right)
    return (a > b) - (a < b)


@lru_cache(maxsize=4096)
def in_range(version: str, versions: str) -> bool:
    """Whether every comparison of the range ``versions`` holds for ``version``.

    Raises UserError when either of them is malformed.
    """
    number, holds = parse(version), True
    for comparison in versions.split(","):
        match = _COMPARISON.fullmatch(comparison)
        if not match:
            raise UserError(
                f"{comparison!r} is not a comparison of versions",
                "write it like >=0.18.0,<0.22.0",
                code="invalid-version",
            )
        holds &= _OPERATORS[match[1]](number, parse(match[2]))
    return holds
