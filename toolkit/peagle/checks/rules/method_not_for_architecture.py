"""A head class that vLLM does not have, as named in config.json or implied by the format.

vLLM prefixes a class name with Eagle3 unless the name begins or ends with it, so that a class of a
training framework, such as PEagleDraftModel, becomes one that vLLM rejects at start.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.registry import Findings, Rule, for_head
from peagle_serve.heads import HeadConfig, vllm_class

RULE = Rule("method-not-for-architecture", about="head", vllm_notices="at start")

_SPECULATORS = {
    ("eagle3", "llama"): "Eagle3LlamaForCausalLM",
    ("eagle3", "qwen3"): "Eagle3Qwen3ForCausalLM",
    ("peagle", "llama"): "PeagleLlamaForCausalLM",
    ("peagle", "qwen3"): "PeagleQwen3ForCausalLM",
}
"""Type of the speculators format and model_type of its layers -> vLLM's class (algos.py)."""


@for_head
def check(case: Case, head: Head) -> Findings:
    if head.config.speculators not in (None, "eagle3", "peagle"):
        return
    classes = class_names(head.config)
    for entry in RULE.entries(case):
        if not set(classes) & set(entry.names):
            who = f"{head.location} ({', '.join(classes) or 'no class'})"
            yield RULE.of_entry(entry, "drafter", who)


def class_names(head: HeadConfig) -> tuple[str, ...]:
    """The class names that vLLM looks up for the head."""
    if head.speculators is not None:
        made = _SPECULATORS.get((head.speculators, head.model_type))
        return (made or f"{head.speculators} with layers of {head.model_type}",)
    return tuple(map(vllm_class, head.classes))
