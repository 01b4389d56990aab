"""Structured output with a drafter.

Drafts that violate the JSON schema are rejected, to a degree that depends on the version: the
endpoint can be slower than without a drafter.
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
"""Arguments of an endpoint with structured output."""


def check(case: Case) -> Iterator[Finding]:
    """A finding when the endpoint is set up for structured output."""
    given = [name for name in _SIGNS if setting(case, name) not in (None, False)]
    if given and is_eagle(case):
        for entry in entries(case, CODE):
            yield version_finding(entry, "vllm", f"--{given[0]}")
