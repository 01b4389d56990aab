"""Watermarking is off with P-EAGLE.

vLLM refuses the two together.
"""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.checks.facts import entries, is_parallel, told
from toolkit.checks.models import Case
from toolkit.findings import Finding

CODE = "watermarking"
ABOUT = "version"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """A finding for each argument that begins with watermarking."""
    asked = [name for name in case.settings if name.startswith("watermarking")]
    if asked and is_parallel(case):
        for entry in entries(case, CODE):
            yield told(entry, "vllm", f"--{asked[0]}")
