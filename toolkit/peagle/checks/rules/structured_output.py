"""Structured output with a drafter.

Drafts that violate the JSON schema are rejected, to a degree that depends on the version: the
endpoint can be slower than without a drafter.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule

RULE = Rule("structured-output", about="version", vllm_notices="never")

_SIGNS = (
    "structured-outputs-config",
    "guided-decoding-backend",
    "tool-call-parser",
    "enable-auto-tool-choice",
)
"""Arguments of an endpoint with structured output."""


def check(case: Case) -> Findings:
    given = [name for name in _SIGNS if case.setting(name) not in (None, False)]
    if given and case.is_eagle:
        yield from RULE.by_version(case, "vllm", f"--{given[0]}")
