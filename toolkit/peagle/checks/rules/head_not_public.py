"""The head's weights are public.

The catalogue knows the sizes of some heads whose weights nobody publishes: estimates with them hold
for your own head of the same kind. A plan uses another drafter instead.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.catalog.schema import Drafter
from peagle.checks.facts import read
from peagle.findings import Finding, warning

CODE = "head-not-public"
ABOUT = "head"
VLLM_NOTICES = "never"

HINT = "name your own head with --drafter: s3://..., a Hugging Face id, or a folder"


def check(case: Case) -> Iterator[Finding]:
    """A warning for a head without weights, unless the user's own was read."""
    drafter = case.drafter
    if drafter is None or drafter.public or drafter.weights is not None or read(case) is not None:
        return
    instead = next((one for one in case.target.drafters if one.name == drafter.fallback), None)
    yield replaced_by(drafter, instead)


def replaced_by(drafter: Drafter, instead: Drafter | None) -> Finding:
    """The warning that this head has no public weights, and what a plan uses instead."""
    message = f"{drafter.title} is not public"
    if instead is not None:
        message += f", so a plan uses {instead.title} instead"
    return warning(CODE, "drafter", message, HINT)
