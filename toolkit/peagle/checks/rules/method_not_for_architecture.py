"""A head class that vLLM does not have, as named in config.json or implied by the format.

vLLM prefixes a class name with Eagle3 unless the name begins or ends with it, so that a class of a
training framework, such as PEagleDraftModel, becomes one that vLLM refuses at start.
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
    """A finding when vLLM has none of the classes that it looks up."""
    head = head_of(case)
    if head is None or head.speculators not in (None, "eagle3", "peagle"):
        return
    classes = class_names(head)
    for entry in entries(case, CODE):
        if not set(classes) & set(entry.names):
            who = f"{location_of(case)} ({', '.join(classes) or 'no class'})"
            yield version_finding(entry, "drafter", who)


def class_names(head: HeadConfig) -> tuple[str, ...]:
    """The class names that vLLM looks up for the head."""
    if head.speculators is not None:
        made = _SPECULATORS.get((head.speculators, head.model_type))
        return (made or f"{head.speculators} with layers of {head.model_type}",)
    return tuple(
        name if name.startswith("Eagle3") or name.endswith("Eagle3") else f"Eagle3{name}"
        for name in head.classes
    )
