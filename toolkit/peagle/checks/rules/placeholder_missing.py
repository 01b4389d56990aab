"""A P-EAGLE head that does not name the placeholder token of its masked slots.

The key in config.json depends on the vLLM version. vLLM rejects a head without one at start.
"""

from typing import Any

from peagle.case import Case
from peagle.catalog.tables import VersionRule
from peagle.checkpoints.heads import Head
from peagle.checks.registry import Findings, Rule, for_head
from peagle_serve.heads import placeholder

RULE = Rule("placeholder-missing", about="head", vllm_notices="at start")


_SPECULATORS_FIX = "copy the head again, or set mask_token_id to the token it was trained with"


@for_head
def check(case: Case, head: Head) -> Findings:
    if not case.is_parallel or head.config.speculators == "eagle3":
        return
    for entry in RULE.entries(case) if head.config.parallel_drafting or head.has_mask else ():
        if found_placeholder(head, entry) is None:
            fix = _SPECULATORS_FIX if head.config.speculators_format else ""
            yield RULE.of_entry(entry, "drafter", head.location, fix)


def found_placeholder(head: Head, entry: VersionRule) -> tuple[str, Any] | None:
    """The first key that this vLLM version reads, and its value; the speculators format has a
    single key."""
    names = ("mask_token_id",) if head.config.speculators_format else entry.names
    return placeholder(head.document, names)
