"""Embeddings of the head whose shape differs from config.json.

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
    expected = (head.vocab_size or shape_of(case).vocab_size, head.hidden_size)
    if table.shape != expected and table.shape[-1:] != (stored_width(case),):
        message = (
            f"embed_tokens.weight of {location_of(case)} has shape {list(table.shape)}; its "
            f"config.json requires {list(expected)}"
        )
        fix = "copy the head again, or leave embed_tokens out to share the target's"
        yield error(CODE, "drafter", message, fix)
