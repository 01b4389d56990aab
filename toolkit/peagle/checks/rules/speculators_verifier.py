"""A head in the speculators format that was trained for another target, its verifier.

vLLM does not compare them when the target is given too. A head of another model of the same sizes
runs, and nearly no draft is accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from peagle.case import Case
from peagle.checks.facts import OTHER_HEAD, config_of, location_of, shape_of
from peagle.findings import Finding, error, warning

CODE = "speculators-verifier"
ABOUT = "head"
VLLM_NOTICES = "never"


def check(case: Case) -> Iterator[Finding]:
    """An error for another verifier; a warning for a variant, such as an FP8 version."""
    verifier = _verifier(config_of(case))
    name = verifier.get("name_or_path")
    if not isinstance(name, str) or not name:
        return
    theirs, ours = _last(name), _last(case.target.id)
    if theirs == ours or _last(case.target.weights) == theirs:
        return
    message = f"{location_of(case)} was trained for {name}, but the target is {case.target.id}"
    if ours in theirs or theirs in ours:
        fix = "measure acceptance: the hidden states of a variant differ slightly"
        yield warning(CODE, "drafter", message, fix)
    elif name.count("/") == 1 or shape_of(case).class_name not in _classes(verifier):
        yield error(CODE, "drafter", message, OTHER_HEAD)


def _verifier(config: Mapping[str, object]) -> Mapping[str, object]:
    outer = config.get("speculators_config")
    verifier = outer.get("verifier") if isinstance(outer, Mapping) else None
    return verifier if isinstance(verifier, Mapping) else {}


def _last(name: str) -> str:
    return PurePosixPath(name.rstrip("/")).name.lower()


def _classes(verifier: Mapping[str, object]) -> list[object]:
    """The verifier's classes, for a verifier named by its folder only."""
    classes = verifier.get("architectures")
    return classes if isinstance(classes, list) else []
