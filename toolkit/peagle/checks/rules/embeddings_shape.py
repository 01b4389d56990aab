"""Embeddings that the head brings have a row per token and the head's width.

vLLM builds the table from config.json and refuses weights of another shape when it loads them.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import head_of, location_of, shape_of, stored_width, tensors_of
from peagle.findings import Finding, error

CODE = "embeddings-shape"
ABOUT = "head"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """An error for an embedding table of another shape."""
    head, table = head_of(case), tensors_of(case).get("embed_tokens.weight")
    if head is None or table is None or head.quantized:
        return
    wanted = (head.vocab_size or shape_of(case).vocab_size, head.hidden_size)
    if table.shape != wanted and table.shape[-1:] != (stored_width(case),):
        message = (
            f"embed_tokens.weight of {location_of(case)} has the shape {list(table.shape)}, and "
            f"its config.json makes it {list(wanted)}"
        )
        fix = "copy the head again, or leave the table out to share the target's"
        yield error(CODE, "drafter", message, fix)
