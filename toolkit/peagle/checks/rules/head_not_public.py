"""A head whose weights are not public.

The catalogue has the sizes of some unpublished heads; estimates with them hold for your own head
of the same kind. A plan uses another drafter instead.
"""

from peagle.case import Case
from peagle.catalog.schema import Drafter
from peagle.checks.registry import Findings, Rule
from peagle.findings import Finding

RULE = Rule("head-not-public", about="head", vllm_notices="never")

HINT = "pass your own head with --drafter: s3://..., a Hugging Face id, or a folder"


def check(case: Case) -> Findings:
    drafter = case.drafter
    if drafter is None or drafter.public or drafter.weights is not None or case.head is not None:
        return
    instead = (other for other in case.target.drafters if other.name == drafter.fallback)
    yield replaced_by(drafter, next(instead, None))


def replaced_by(drafter: Drafter, instead: Drafter | None) -> Finding:
    """The warning about a head without public weights, with the drafter that replaces it."""
    message = f"{drafter.title}: not public"
    if instead is not None:
        message += f"; a plan uses another drafter: {instead.title}"
    return RULE.warning("drafter", message, HINT)
