"""The drafter's folder holds a draft head, not a model or something else.

A target's own folder, or an empty config, given as the head: vLLM fails while it loads the weights,
after minutes of a paid instance.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checkpoints.heads import classes_of, is_head
from peagle.checks.facts import is_eagle
from peagle.findings import Finding, error

CODE = "head-not-a-drafter"
ABOUT = "head"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """An error for a config.json without any sign of an EAGLE-3 or P-EAGLE head."""
    checkpoint = case.drafter_checkpoint
    if checkpoint is None or not is_eagle(case) or is_head(checkpoint.config):
        return
    what = ", ".join(classes_of(checkpoint.config)) or "no class"
    message = (
        f"{checkpoint.location} is no draft head: its config.json names {what}, and nothing that "
        "an EAGLE-3 or P-EAGLE head has"
    )
    fix = "name the folder of the head that was trained for this target, not that of a model"
    yield error(CODE, "drafter", message, fix)
