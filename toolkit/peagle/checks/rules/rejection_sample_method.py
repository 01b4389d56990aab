"""A rejection_sample_method that the vLLM version or the machine does not support.

vLLM refuses it at start.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import entries, speculative_settings, version_finding
from peagle.findings import Finding, error

CODE = "rejection-sample-method"
ABOUT = "version"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """A finding for a value that is unknown to this version or needs a GPU."""
    method = speculative_settings(case).get(CODE.replace("-", "_"))
    if method is None:
        return
    for entry in entries(case, CODE):
        if method not in entry.names:
            yield version_finding(entry, "drafter", repr(method))
            return
    if method == "synthetic" and case.on_cpu:
        message = "rejection_sample_method synthetic does not run on a CPU"
        yield error(CODE, "drafter", message, "leave rejection_sample_method out on this machine")
