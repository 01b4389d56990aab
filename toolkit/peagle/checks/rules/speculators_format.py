"""A P-EAGLE head in the speculators format on a vLLM version that does not support the format.

Older versions refuse it at start.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import entries, head_of, is_parallel, version_finding
from peagle.findings import Finding

CODE = "speculators-format"
ABOUT = "version"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """A finding for such a head, as read or from the catalogue."""
    head, drafter = head_of(case), case.drafter
    if drafter is None or not is_parallel(case):
        return
    nested = head.speculators == "peagle" if head else drafter.format == "speculators"
    if nested:
        for entry in entries(case, CODE):
            yield version_finding(entry, "vllm", drafter.title)
