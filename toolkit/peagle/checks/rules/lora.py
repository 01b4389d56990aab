"""LoRA adapters with a drafter.

vLLM applies the adapter to the target only, so acceptance falls. In vLLM 0.28.0 a P-EAGLE head that
shares the target's embeddings crashes the engine on the first request, with or without an adapter.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import entries, is_eagle, is_parallel, setting, tensors_of, version_finding
from peagle.findings import Finding

CODE = "lora"
ABOUT = "version"
VLLM_NOTICES = "on a request"


def check(case: Case) -> Iterator[Finding]:
    """A finding when adapters are enabled."""
    if not is_eagle(case) or setting(case, "enable-lora") is not True:
        return
    kind = "shared" if is_parallel(case) and case.k > 1 and _shares(case) else "own"
    known = {entry.value: entry for entry in entries(case, CODE)}
    entry = known.get(kind) or known.get("own")
    if entry is not None:
        yield version_finding(entry, "vllm", "--enable-lora")


def _shares(case: Case) -> bool:
    """Whether the head uses the target's embeddings, as far as known."""
    tensors = tensors_of(case)
    if tensors:
        return not any("embed_tokens" in name for name in tensors)
    return case.drafter is not None and case.drafter.own_embeddings is False
