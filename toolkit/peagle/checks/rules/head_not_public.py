"""A head whose weights are not public.

The catalogue has the sizes of some unpublished heads; estimates with them hold for your own head
of the same kind. A plan uses another drafter instead.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.catalog.schema import Drafter
from peagle.checks.facts import head_checkpoint
from peagle.findings import Finding, warning

CODE = "head-not-public"
ABOUT = "head"
VLLM_NOTICES = "never"

HINT = "pass your own head with --drafter: s3://..., a Hugging Face id, or a folder"


def check(case: Case) -> Iterator[Finding]:
    """A warning for a head without weights, unless the user's own head was read."""
    drafter = case.drafter
    if (
        drafter is None
        or drafter.public
        or drafter.weights is not None
        or head_checkpoint(case) is not None
    ):
        return
    instead = next((one for one in case.target.drafters if one.name == drafter.fallback), None)
    yield replaced_by(drafter, instead)


def replaced_by(drafter: Drafter, instead: Drafter | None) -> Finding:
    """The warning about a head without public weights, with the drafter that replaces it."""
    message = f"{drafter.title} is not public"
    if instead is not None:
        message += f"; a plan uses {instead.title} instead"
    return warning(CODE, "drafter", message, HINT)
