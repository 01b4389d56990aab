"""Drafter layers in more than one group of vLLM's KV cache.

vLLM assigns sliding and full layers, of a hybrid target or of the head itself, to groups of one
size, and does not start when the drafter's layers are in two of them.
"""

from peagle.case import Case
from peagle.catalog.schema import AttentionGroup
from peagle.checkpoints.heads import attention_of
from peagle.checks.head_layout import cache_groups
from peagle.checks.registry import Findings, Rule
from peagle.errors import Fix

ONE_GROUP = "disable-hybrid-kv-cache-manager"
"""The argument with which vLLM keeps all layers in one group (config/vllm.py)."""

RULE = Rule("kv-group-rule", about="version", vllm_notices="at start")


def check(case: Case) -> Findings:
    draft = drafted(case)
    if case.drafter is None or not case.is_eagle or not draft or not are_layers_grouped(case):
        return
    for entry in RULE.entries(case):
        if len(draft) > 1:
            kinds = " and ".join(f"{group.layers} {group.kind}" for group in draft)
            who = f"{case.drafter.title}, with {kinds} layers"
            yield RULE.of_entry(entry, "drafter", who, _fix_for_mixed(case))
            continue
        groups = cache_groups(case.architecture.attention, draft, float(entry.value or 0))
        if groups is not None and groups.draft > 1:
            who = f"{case.drafter.title}, with {draft[0].layers} layers in {groups.draft} groups"
            yield RULE.of_entry(entry, "drafter", who)


def are_layers_grouped(case: Case) -> bool:
    """Whether vLLM keeps sliding and full layers in groups of their own."""
    return case.setting(ONE_GROUP) is not True


def _fix_for_mixed(case: Case) -> str | Fix:
    fix = "use a head whose layers all have the same attention"
    if any(group.kind == "sliding" for group in case.architecture.attention):
        return fix  # one group would keep the target's sliding layers in full
    return Fix(f"keep all layers in one group, or {fix}", options=("--set", f"{ONE_GROUP}=true"))


def drafted(case: Case) -> tuple[AttentionGroup, ...]:
    """The head's layers: as read, from the catalogue, or like the target's full layers."""
    drafter = case.drafter
    known = (attention_of(case.head.config) if case.head else ()) or (
        drafter.attention if drafter else ()
    )
    if known or drafter is None or drafter.hidden_layers is None:
        return known
    full = [group for group in case.architecture.attention if group.kind == "full"]
    layers = drafter.hidden_layers
    return tuple(group.model_copy(update={"layers": layers}) for group in full[:1])
