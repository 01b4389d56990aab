"""Drafter layers in more than one group of vLLM's KV cache.

vLLM assigns the layers of a hybrid target (sliding and full attention) to groups of one size, and
does not start when the drafter's layers are in two of them.
"""

from peagle.case import Case
from peagle.catalog.schema import AttentionGroup
from peagle.checkpoints.heads import attention_of
from peagle.checks.head_layout import draft_groups
from peagle.checks.registry import Findings, Rule

RULE = Rule("kv-group-rule", about="version", vllm_notices="at start")


def check(case: Case) -> Findings:
    draft = drafted(case)
    if case.drafter is None or not case.is_eagle or not draft:
        return
    for entry in RULE.entries(case):
        groups = draft_groups(case.architecture.attention, draft, float(entry.value or 0))
        if groups is not None and groups > 1:
            layers = sum(group.layers for group in draft)
            who = f"{case.drafter.title}, with {layers} layers in {groups} groups"
            yield RULE.of_entry(entry, "drafter", who)


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
