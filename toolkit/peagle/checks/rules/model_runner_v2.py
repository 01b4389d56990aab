"""A model runner that cannot run the drafter.

vLLM selects a runner that can. VLLM_USE_V2_MODEL_RUNNER=1 skips the selection, and the V2 runner
does not run P-EAGLE.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import entries, is_eagle, is_parallel, version_finding
from peagle.findings import Finding

CODE = "model-runner-v2"
ABOUT = "version"
VLLM_NOTICES = "never"

_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"


def check(case: Case) -> Iterator[Finding]:
    """A finding when the variable forces the V2 runner."""
    if case.environment.get(_VARIABLE, "").strip().lower() not in ("1", "true"):
        return
    kind = "parallel" if is_parallel(case) else "sequential"
    for entry in entries(case, CODE) if is_eagle(case) else ():
        if entry.value == kind:
            yield version_finding(entry, "environment", f"{_VARIABLE}=1")
