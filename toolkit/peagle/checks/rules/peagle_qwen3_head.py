"""A P-EAGLE speculators head with Qwen3 layers on a vLLM version without its class.

Older versions refuse it at start.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import entries, head_of, location_of, version_finding
from peagle.checks.rules import speculators_format
from peagle.findings import Finding

CODE = "peagle-qwen3-head"
ABOUT = "version"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """A finding for such a head, unless the version refuses the format itself."""
    head = head_of(case)
    if head is None or (head.speculators, head.model_type) != ("peagle", "qwen3"):
        return
    if not any(speculators_format.check(case)):
        for entry in entries(case, CODE):
            yield version_finding(entry, "vllm", location_of(case))
