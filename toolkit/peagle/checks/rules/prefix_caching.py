"""Prefix caching with heads whose model cards turn it off.

vLLM runs with both, but cache hits are lost and acceptance falls, without a warning.
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
    """A finding when prefix caching is turned on explicitly."""
    if is_eagle(case) and setting(case, "enable-prefix-caching") is True:
        for entry in entries(case, CODE):
            yield version_finding(entry, "vllm", "--enable-prefix-caching")
