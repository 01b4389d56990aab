"""A head that the catalogue lists for another target.

Hardly any of its drafts are accepted, or it does not load.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.catalog.schema import Target
from peagle.checkpoints.locations import is_hub_id, split_revision
from peagle.findings import Finding, error

CODE = "head-not-for-target"
ABOUT = "head"
VLLM_NOTICES = "never"


def check(case: Case) -> Iterator[Finding]:
    """An error when the catalogue lists the head's Hugging Face id under another target only."""
    named = case.drafter.weights if case.drafter else None
    read = case.drafter_checkpoint.location if case.drafter_checkpoint else None
    hub_id = next((split_revision(at)[0] for at in (named, read) if at and is_hub_id(at)), None)
    if hub_id is None or _has(case.target, hub_id):
        return
    for other in case.targets.values():
        if other.id != case.target.id and _has(other, hub_id):
            own = case.target
            names = ", ".join(drafter.name for drafter in own.drafters)
            message = f"{hub_id} was trained for {other.id}, not for {own.id}"
            fix = f"use the target {other.short_name}, or a drafter of {own.short_name}: {names}"
            yield error(CODE, "drafter", message, fix)


def _has(target: Target, hub_id: str) -> bool:
    return any((one.weights or "").lower() == hub_id.lower() for one in target.drafters)
