"""A head that the catalogue lists only under a different target.

Hardly any of its drafts are accepted, or it does not load. For a target of the user's own with the
sizes of that target, probably a fine-tuned copy, it is a warning.
"""

from peagle.case import Case
from peagle.catalog.find import same_sizes
from peagle.catalog.schema import Target
from peagle.checkpoints.models import is_hub_id, split_revision
from peagle.checks.registry import Findings, Rule

RULE = Rule("head-not-for-target", about="head", vllm_notices="never")


def check(case: Case) -> Findings:
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
            if case.own_target and same_sizes(case.target, other):
                fix = "measure acceptance: the head knows the base model, not what was tuned"
                yield RULE.warning("drafter", message, fix)
                continue
            fix = f"use the target {other.short_name}"
            fix += f", or a drafter of {own.short_name}: {names}" if names else ""
            yield RULE.error("drafter", message, fix)


def _has(target: Target, hub_id: str) -> bool:
    return any((drafter.weights or "").lower() == hub_id.lower() for drafter in target.drafters)
