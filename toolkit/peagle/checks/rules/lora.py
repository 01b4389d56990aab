"""LoRA adapters with a drafter.

vLLM applies the adapter to the target only, so acceptance falls. In vLLM 0.28.0 a P-EAGLE head that
shares the target's embeddings crashes the engine on the first request, with or without an adapter.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule

RULE = Rule("lora", about="version", vllm_notices="on a request")


def check(case: Case) -> Findings:
    if not case.is_eagle or case.setting("enable-lora") is not True:
        return
    kind = "shared" if case.is_parallel and case.k > 1 and _shares(case) else "own"
    known = {entry.value: entry for entry in RULE.entries(case)}
    entry = known.get(kind) or known.get("own")
    if entry is not None:
        yield RULE.of_entry(entry, "vllm", "--enable-lora")


def _shares(case: Case) -> bool:
    """Whether the head uses the target's embeddings, as far as known."""
    if case.head is not None and case.head.tensors:
        return case.head.named("embed_tokens") is None
    return case.drafter is not None and case.drafter.own_embeddings is False
