"""A P-EAGLE head that does not name the placeholder token of its masked slots.

The key in config.json depends on the vLLM version. vLLM refuses a head without one at start.
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
    """A finding for a P-EAGLE head without any of the keys that this version reads."""
    head = head_of(case)
    if head is None or not is_parallel(case):
        return
    if head.speculators == "eagle3" or not (head.parallel_drafting or masked(case)):
        return
    for entry in entries(case, CODE):
        if placeholder(config_of(case), keys(head, entry.names)) is None:
            yield version_finding(entry, "drafter", location_of(case))


def keys(head: HeadConfig, names: tuple[str, ...]) -> tuple[str, ...]:
    """The keys that vLLM reads; the speculators format has a single one."""
    return ("mask_token_id",) if head.speculators_format else names
