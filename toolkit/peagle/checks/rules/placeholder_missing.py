"""A head that drafts in parallel names the token that stands in its masked slots.

Where its config.json keeps it depends on the version. vLLM refuses a head without one when it
starts.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checkpoints.heads import HeadConfig, placeholder
from peagle.checks.facts import (
    config_of,
    entries,
    head_of,
    is_parallel,
    location_of,
    masked,
    version_finding,
)
from peagle.findings import Finding

CODE = "placeholder-missing"
ABOUT = "head"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """A finding for a P-EAGLE head none of whose keys, on this version, names a token."""
    head = head_of(case)
    if head is None or not is_parallel(case):
        return
    if head.speculators == "eagle3" or not (head.parallel_drafting or masked(case)):
        return
    for entry in entries(case, CODE):
        if placeholder(config_of(case), keys(head, entry.names)) is None:
            yield version_finding(entry, "drafter", location_of(case))


def keys(head: HeadConfig, names: tuple[str, ...]) -> tuple[str, ...]:
    """The keys that count: the speculators format has one, which vLLM itself passes on."""
    return ("mask_token_id",) if head.speculators_format else names
