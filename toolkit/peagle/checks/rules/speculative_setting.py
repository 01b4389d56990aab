"""A key of --speculative-config that the vLLM version does not have.

vLLM refuses an unknown key at start.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import entries, speculative_settings, version_finding
from peagle.errors import nearest
from peagle.findings import Finding

CODE = "speculative-setting"
ABOUT = "version"
VLLM_NOTICES = "at start"

_KNOWN = "known"
"""Value of the entry that lists the keys of all versions."""


def check(case: Case) -> Iterator[Finding]:
    """A finding for each key that this version, or any version, does not have."""
    keys = set(speculative_settings(case))
    for entry in entries(case, CODE):
        if entry.value == _KNOWN:
            for key in sorted(keys - set(entry.names)):
                fix = nearest(key, entry.names) or entry.fix
                yield version_finding(entry.model_copy(update={"fix": fix}), "drafter", key)
        else:
            for key in sorted(keys & set(entry.names)):
                yield version_finding(entry, "drafter", key)
