"""A K above the one that the head was trained for.

vLLM accepts any K. Drafts beyond the trained K are rarely accepted and must be verified: slower
than a smaller K.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from peagle.case import Case
from peagle.checks.facts import config_of
from peagle.findings import Finding, error

CODE = "k-above-trained"
ABOUT = "load"
VLLM_NOTICES = "never"


def check(case: Case) -> Iterator[Finding]:
    """An error above the trained K of the catalogue or the head's config."""
    trained, drafter = k_trained(case), case.drafter
    if drafter is None or trained is None or case.k <= trained:
        return
    message = f"K={case.k} is more than the {trained} that {drafter.title} was trained for"
    best = min(drafter.k_recommended, trained)
    yield error(CODE, "k", message, f"use --k {trained} or less; {best} is recommended")


def k_trained(case: Case) -> int | None:
    """The trained K: the catalogue's, else ``speculative_tokens`` of a P-EAGLE speculators head."""
    if case.drafter is None:
        return None
    config = config_of(case)
    outer = config.get("speculators_config")
    methods = outer.get("proposal_methods") if isinstance(outer, Mapping) else None
    first = methods[0] if isinstance(methods, list) and methods else {}
    proposed = first.get("speculative_tokens") if isinstance(first, Mapping) else None
    parallel = config.get("speculators_model_type") == "peagle"
    proposed = proposed if parallel and type(proposed) is int and proposed > 0 else None
    return case.drafter.k_trained or proposed
