"""A K that follows the batch size, which costs more than it gains.

vLLM accepts num_speculative_tokens_per_batch_size with P-EAGLE and switches to slower CUDA graphs;
only one log line reports it.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import entries, is_eagle, speculative_settings, version_finding
from peagle.findings import Finding

CODE = "dynamic-k"
ABOUT = "version"
VLLM_NOTICES = "never"

_KEY = "num_speculative_tokens_per_batch_size"


def check(case: Case) -> Iterator[Finding]:
    """A finding when the schedule is set."""
    if is_eagle(case) and speculative_settings(case).get(_KEY) is not None:
        for entry in entries(case, CODE):
            yield version_finding(entry, "k", _KEY)
