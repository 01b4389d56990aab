"""A drafter location that holds no draft head.

Given a model's folder or an empty config as the head, vLLM fails while it loads the weights, after
minutes on a paid instance.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checkpoints.heads import classes_of, is_head
from peagle.checks.facts import OTHER_HEAD, is_eagle
from peagle.findings import Finding, error

CODE = "head-not-a-drafter"
ABOUT = "head"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """An error for a config.json that no EAGLE-3 or P-EAGLE head has."""
    checkpoint = case.drafter_checkpoint
    if checkpoint is None or not is_eagle(case) or is_head(checkpoint.config):
        return
    what = ", ".join(classes_of(checkpoint.config)) or "no class"
    message = (
        f"{checkpoint.location} is not a draft head: its config.json names {what} and has no key "
        "of an EAGLE-3 or P-EAGLE head"
    )
    yield error(CODE, "drafter", message, OTHER_HEAD)
