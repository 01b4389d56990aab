"""A rejection_sample_method that is lossy, or that version or machine do not support.

vLLM rejects what it does not support at start. It runs ``fly``, which accepts drafts that the
target would not have written.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule
from peagle.vllm.facts import facts_of
from peagle.vllm.versions import in_range

RULE = Rule("rejection-sample-method", about="version", vllm_notices="at start")

_KEY = "rejection_sample_method"
_LOSSY = "fly"
_FROM_WHEELS = ">=0.28.0"


def check(case: Case) -> Findings:
    method = case.speculative_settings.get(_KEY)
    if method is None:
        return
    unknown = [entry for entry in RULE.entries(case) if method not in entry.names]
    usable = [one for one in facts_of(case.runtime.vllm).rejection_sample_methods if one != _LOSSY]
    if method == _LOSSY:
        message = f"{_KEY} {_LOSSY} is lossy: answers differ from those of the target alone"
        yield RULE.error("drafter", message, f"leave {_KEY} out: the standard method is lossless")
    elif unknown:
        yield RULE.of_entry(unknown[0], "drafter", repr(method))
    elif in_range(case.runtime.vllm, _FROM_WHEELS) and method not in usable:
        message = f"{method!r}: vLLM {case.runtime.vllm} does not have this {_KEY}"
        yield RULE.error("drafter", message, f"leave it out, or use one of {', '.join(usable)}")
    elif method == "synthetic" and case.on_cpu:
        fix = f"leave {_KEY} out on this machine"
        yield RULE.error("drafter", f"{_KEY} synthetic does not run on a CPU", fix)
