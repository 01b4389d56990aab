"""The expressions of GitHub Actions that the workflows use: paths, texts, comparisons, calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Function = Callable[..., Any]
_EXPRESSION = re.compile(r"\$\{\{ (.*?) \}\}")
_CALL = re.compile(r"(\w+)\((.*)\)")
_STATUS = re.compile(r"\b(always|failure|cancelled|success)\(\)")


def fill(text: str, contexts: Mapping[str, Any], functions: Mapping[str, Function]) -> str:
    """The text with the value of each ``${{ ... }}``."""
    return _EXPRESSION.sub(lambda found: str(value(found[1], contexts, functions)), text)


def is_met(
    condition: str, contexts: Mapping[str, Any], functions: Mapping[str, Function], succeeded: bool
) -> bool:
    """Whether a step or job with this ``if`` runs; without one that names a state, only while all
    before it ``succeeded``."""
    if not _STATUS.search(condition) and not succeeded:
        return False
    return not condition or bool(value(condition, contexts, functions))


def value(text: str, contexts: Mapping[str, Any], functions: Mapping[str, Function]) -> Any:
    """The value of an expression; what is not set is an empty text. Raises ValueError for a
    function that is not in ``functions``."""
    text = text.strip()
    if " && " in text:
        return all(value(one, contexts, functions) for one in text.split(" && "))
    for sign in (" == ", " != "):
        left, found, right = text.partition(sign)
        if found:
            same = value(left, contexts, functions) == value(right, contexts, functions)
            return same is (sign == " == ")
    if text.startswith("'"):
        return text.strip("'")
    if call := _CALL.fullmatch(text):
        if call[1] not in functions:
            raise ValueError(f"unknown function in {text}")
        given = [value(one, contexts, functions) for one in call[2].split(",") if one.strip()]
        return functions[call[1]](*given)
    at: Any = contexts
    for key in text.split("."):
        at = at.get(key, "") if isinstance(at, Mapping) else ""
    return at
