"""Prefix caching is off where the heads' cards turn it off.

vLLM runs with both. Hits were lost and acceptance fell, and nothing tells.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import entries, is_eagle, setting, version_finding
from peagle.findings import Finding

CODE = "prefix-caching"
ABOUT = "version"
VLLM_NOTICES = "never"


def check(case: Case) -> Iterator[Finding]:
    """A finding when it was turned on by hand."""
    if is_eagle(case) and setting(case, "enable-prefix-caching") is True:
        for entry in entries(case, CODE):
            yield version_finding(entry, "vllm", "--enable-prefix-caching")
