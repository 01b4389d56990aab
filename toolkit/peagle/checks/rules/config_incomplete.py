"""A head whose config.json lacks sizes.

For a missing size vLLM uses the default of the class, such as 32 layers. Weights that no file
fills stay uninitialized: vLLM starts, and nearly no draft is accepted.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import head_of, location_of
from peagle.checks.rules import speculators_layout
from peagle.findings import Finding, error

CODE = "config-incomplete"
ABOUT = "head"
VLLM_NOTICES = "never"


def check(case: Case) -> Iterator[Finding]:
    """An error that lists the missing sizes."""
    head = head_of(case)
    if head is None or any(speculators_layout.check(case)):
        return
    sizes = {
        "hidden_size": head.hidden_size,
        "num_hidden_layers": head.layers,
        "num_attention_heads": head.query_heads,
        "intermediate_size": head.intermediate_size,
        "vocab_size": head.vocab_size,
    }
    missing = [key for key, value in sizes.items() if value is None]
    if missing:
        message = f"config.json of {location_of(case)} lacks {', '.join(missing)}"
        yield error(CODE, "drafter", message, "copy the head again, including config.json")
