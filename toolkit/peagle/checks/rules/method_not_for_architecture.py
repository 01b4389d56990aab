"""vLLM has a class for the head: the one that config.json names, or that the format implies.

vLLM puts Eagle3 before a class whose name neither begins nor ends with it, so that heads of
training frameworks, such as PEagleDraftModel, become classes that it does not have. It refuses them
when it starts.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checkpoints.heads import HeadConfig
from peagle.checks.facts import entries, head_of, location_of, version_finding
from peagle.findings import Finding

CODE = "method-not-for-architecture"
ABOUT = "head"
VLLM_NOTICES = "at start"

_SPECULATORS = {
    ("eagle3", "llama"): "Eagle3LlamaForCausalLM",
    ("eagle3", "qwen3"): "Eagle3Qwen3ForCausalLM",
    ("peagle", "llama"): "PeagleLlamaForCausalLM",
    ("peagle", "qwen3"): "PeagleQwen3ForCausalLM",
}
"""Type of the speculators format and model_type of its layers -> vLLM's class (algos.py)."""


def check(case: Case) -> Iterator[Finding]:
    """A finding when none of the classes that vLLM would look up is one of its heads."""
    head = head_of(case)
    if head is None or head.speculators not in (None, "eagle3", "peagle"):
        return
    wanted = looked_up(head)
    for entry in entries(case, CODE):
        if not set(wanted) & set(entry.names):
            who = f"{location_of(case)} ({', '.join(wanted) or 'no class named'})"
            yield version_finding(entry, "drafter", who)


def looked_up(head: HeadConfig) -> tuple[str, ...]:
    """The names under which vLLM looks for the head's class."""
    if head.speculators is not None:
        made = _SPECULATORS.get((head.speculators, head.model_type))
        return (made or f"{head.speculators} with layers of {head.model_type}",)
    return tuple(
        name if name.startswith("Eagle3") or name.endswith("Eagle3") else f"Eagle3{name}"
        for name in head.classes
    )
