"""Embeddings of the head whose shape differs from config.json.

vLLM builds the table from config.json and rejects weights of a different shape when it loads them.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.facts import other_shape
from peagle.checks.head_layout import stored_width
from peagle.checks.registry import Findings, Rule, for_head

RULE = Rule("embeddings-shape", about="head", vllm_notices="at start")

_NAME = "embed_tokens.weight"


@for_head
def check(case: Case, head: Head) -> Findings:
    shape = head.shape(_NAME)
    if shape is None or head.config.quantized:
        return
    expected = (head.config.vocab_size or case.architecture.vocab_size, head.config.hidden_size)
    if shape != expected and shape[-1:] != (stored_width(head),):
        fix = "copy the head again, or leave embed_tokens out to share the target's"
        yield RULE.error("drafter", other_shape(head, _NAME, list(expected)), fix)
