"""rejection_sample_method is one that this version of vLLM has, and that runs on this machine.

vLLM refuses others when it starts.
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
    """A finding for a value that this version does not have, or that needs a GPU."""
    method = speculative_settings(case).get(CODE.replace("-", "_"))
    if method is None:
        return
    for entry in entries(case, CODE):
        if method not in entry.names:
            yield version_finding(entry, "drafter", repr(method))
            return
    if method == "synthetic" and case.on_cpu:
        message = "rejection_sample_method synthetic does not run on a CPU"
        yield error(CODE, "drafter", message, "leave it out on this machine")
