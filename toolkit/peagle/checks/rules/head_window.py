"""A head whose layers attend to a sliding window.

Such a head sees the last tokens of a context only, so acceptance falls in longer ones. A few
sliding layers beside full ones also make vLLM divide the KV cache into small groups, each with a
block table to fill in every step.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head, attention_of
from peagle.checks.head_layout import cache_groups
from peagle.checks.registry import Findings, Rule, for_head
from peagle.checks.rules import kv_group_rule
from peagle.errors import Fix

RULE = Rule("head-window", about="head", vllm_notices="never")

MANY_GROUPS = 16
"""Chosen."""


@for_head
def check(case: Case, head: Head) -> Findings:
    window = max((size for size in head.config.windows if size), default=None)
    if window is not None and case.max_model_len > window:
        message = (
            f"{head.location} sees the last {window:,} tokens only, and the context allows "
            f"{case.max_model_len:,}: acceptance falls in longer requests"
        )
        fix = f"measure acceptance at your lengths, or above {window:,} use a full-attention head"
        yield RULE.warning("drafter", message, fix)
    yield from _many_groups(case, head)


def _many_groups(case: Case, head: Head) -> Findings:
    draft = attention_of(head.config)
    if not kv_group_rule.are_layers_grouped(case) or len(draft) != 1 or draft[0].window is None:
        return
    for entry in kv_group_rule.RULE.entries(case):
        ratio = float(entry.value or 0)
        groups = cache_groups(case.architecture.attention, draft, ratio)
        if groups is not None and groups.draft == 1 and groups.total > MANY_GROUPS:
            message = (
                f"{head.location}: with so few sliding layers vLLM divides the KV cache "
                f"into {groups.total} groups, and fills a block table for each in every step"
            )
            fix = Fix(
                "let vLLM keep all layers in one group",
                options=("--set", f"{kv_group_rule.ONE_GROUP}=true"),
            )
            yield RULE.warning("drafter", message, fix)
