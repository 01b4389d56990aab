"""A target with layers whose cache vLLM accounts for in a way that the memory model does not know.

They count as full attention, so the memory shown is more than needed, and the speed has a wide
range.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule

RULE = Rule("cache-estimated", about="target", vllm_notices="never")


def check(case: Case) -> Findings:
    unknown = case.architecture.unknown_cache
    if unknown:
        message = (
            f"how vLLM caches layers of {case.target.id} is not known ({unknown}): each layer "
            "counts as full attention, the largest cache"
        )
        fix = 'compare with "GPU KV cache size" in vLLM\'s log before you choose a smaller instance'
        yield RULE.warning("target", message, fix)
