"""A K above the K that the head was trained for.

vLLM accepts any K. Drafts beyond the trained K are rarely accepted and must be verified: slower
than a smaller K.
"""

from peagle.case import Case
from peagle.checkpoints.heads import trained_k
from peagle.checks.registry import Findings, Rule
from peagle.errors import Fix

RULE = Rule("k-above-trained", about="load", vllm_notices="never")


def check(case: Case) -> Findings:
    trained, drafter = k_trained(case), case.drafter
    if drafter is not None and trained is not None and case.k > trained:
        message = f"{drafter.title}: K={case.k} exceeds the trained K of {trained}"
        best = min(drafter.k_recommended, trained)
        fix = Fix(f"use --k {trained} or less; {best} is recommended", options=("--k", f"{best}"))
        yield RULE.error("k", message, fix)


def k_trained(case: Case) -> int | None:
    """The trained K: the catalogue's, else ``speculative_tokens`` of a P-EAGLE speculators head."""
    known = case.drafter.k_trained if case.drafter else None
    if known or case.head is None:
        return known
    return trained_k(case.head.document)
