"""Watermarking with P-EAGLE.

vLLM refuses the combination. Its argument --watermark is unrelated.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import entries, is_parallel, version_finding
from peagle.findings import Finding

CODE = "watermarking"
ABOUT = "version"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """A finding for --watermark-config."""
    if is_parallel(case) and "watermark-config" in case.settings:
        for entry in entries(case, CODE):
            yield version_finding(entry, "vllm", "--watermark-config")
