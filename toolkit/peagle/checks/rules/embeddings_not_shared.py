"""A head without embeddings of its own whose width differs from the target's.

vLLM shares the target's embeddings when the widths are equal. Otherwise it keeps an uninitialized
table and reports it in one log line: nearly no draft is accepted.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.head_layout import stored_width
from peagle.checks.registry import Findings, Rule, for_head
from peagle.checks.rules import hidden_size_mismatch

RULE = Rule("embeddings-not-shared", about="head", vllm_notices="never")


@for_head
def check(case: Case, head: Head) -> Findings:
    width, own_width = case.architecture.hidden_size, head.config.hidden_size
    if not head.tensors or head.named("embed_tokens"):
        return
    if own_width in (None, width, case.target.architecture.hidden_size):
        return
    # Other rules report a wrong config.json, and the head of a different model.
    if stored_width(head) is None and not any(hidden_size_mismatch.check(case)):
        message = (
            f"{head.location} has no embeddings, and those of {case.target.id} have width "
            f"{width:,}, not {own_width:,}"
        )
        yield RULE.error("drafter", message, "export the head with embed_tokens")
