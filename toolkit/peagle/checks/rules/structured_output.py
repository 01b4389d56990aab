"""Structured output is used with care beside a drafter.

Drafts that a JSON schema does not allow are thrown away, and versions differ in how many: the
endpoint answers, slower than without a drafter.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import entries, is_eagle, setting, version_finding
from peagle.findings import Finding

CODE = "structured-output"
ABOUT = "version"
VLLM_NOTICES = "never"

_SIGNS = (
    "structured-outputs-config",
    "guided-decoding-backend",
    "tool-call-parser",
    "enable-auto-tool-choice",
)
"""Arguments of an endpoint that is to answer in structures."""


def check(case: Case) -> Iterator[Finding]:
    """A finding when the endpoint is set up for structured output."""
    asked = [name for name in _SIGNS if setting(case, name) not in (None, False)]
    if asked and is_eagle(case):
        for entry in entries(case, CODE):
            yield version_finding(entry, "vllm", f"--{asked[0]}")
