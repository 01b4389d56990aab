"""A head with a norm before fc runs on a vLLM that computes that norm.

Older versions load it and leave the norm out: the endpoint is green, and nearly nothing is
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
