"""A head with a norm before ``fc`` on a vLLM version that ignores that norm.

Older versions load the head without it: the endpoint becomes healthy, and nearly no draft is
accepted.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import entries, head_of, location_of, version_finding
from peagle.findings import Finding

CODE = "norm-before-fc"
ABOUT = "version"
VLLM_NOTICES = "never"


def check(case: Case) -> Iterator[Finding]:
    """A finding for such a head on such a version."""
    head = head_of(case)
    if head is not None and head.norm_before_fc:
        for entry in entries(case, CODE):
            yield version_finding(entry, "vllm", location_of(case))
