"""The head can be had.

Of some heads the catalogue knows the numbers, and nobody publishes the weights: what is reckoned
with them is true of a head of one's own that is like it. `peagle plan` takes another one instead.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import read
from peagle.findings import Finding, warning

CODE = "head-not-public"
ABOUT = "head"
VLLM_NOTICES = "never"


def check(case: Case) -> Iterator[Finding]:
    """A warning for a head without weights, unless one of one's own was read."""
    drafter = case.drafter
    if drafter is None or drafter.public or drafter.weights is not None or read(case) is not None:
        return
    instead = next((one for one in case.target.drafters if one.name == drafter.fallback), None)
    taken = f", and plan takes {instead.title} instead" if instead else ""
    message = f"{drafter.title} is not public{taken}"
    yield warning(CODE, "drafter", message, "give your own with --drafter, or name another pair")
