"""Drafter layers in more than one group of vLLM's KV cache.

vLLM assigns the layers of a hybrid target (sliding and full attention) to groups of one size, and
refuses to start when the drafter's layers are in two of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.catalog.schema import AttentionGroup
from peagle.checkpoints.heads import attention_of
from peagle.checks.facts import entries, head_of, is_eagle, shape_of, version_finding
from peagle.checks.head_layout import draft_groups
from peagle.findings import Finding

CODE = "kv-group-rule"
ABOUT = "version"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """A finding when this version splits the drafter's layers."""
    drafter, target = case.drafter, shape_of(case).attention
    draft = drafted(case)
    if drafter is None or not is_eagle(case) or not draft:
        return
    for entry in entries(case, CODE):
        groups = draft_groups(target, draft, float(entry.value or 0))
        if groups is not None and groups > 1:
            layers = sum(group.layers for group in draft)
            who = f"the {layers} layers of {drafter.title} fall into {groups} groups"
            yield version_finding(entry, "drafter", who)


def drafted(case: Case) -> tuple[AttentionGroup, ...]:
    """The head's layers: as read, from the catalogue, or like the target's full layers."""
    head, drafter = head_of(case), case.drafter
    known = (attention_of(head) if head else ()) or (drafter.attention if drafter else ())
    if known or drafter is None or drafter.hidden_layers is None:
        return known
    full = [group for group in shape_of(case).attention if group.kind == "full"]
    layers = drafter.hidden_layers
    return tuple(group.model_copy(update={"layers": layers}) for group in full[:1])
