"""The keys of --speculative-config are ones that this version of vLLM has.

vLLM refuses a key that it does not know when it starts.
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
"""Value of the entry that names every key that any version has."""


def check(case: Case) -> Iterator[Finding]:
    """A finding for each key that this version, or every version, is known not to have."""
    keys = set(speculative_settings(case))
    for entry in entries(case, CODE):
        if entry.value == _KNOWN:
            for key in sorted(keys - set(entry.names)):
                fix = nearest(key, entry.names) or entry.fix
                yield version_finding(entry.model_copy(update={"fix": fix}), "drafter", key)
        else:
            for key in sorted(keys & set(entry.names)):
                yield version_finding(entry, "drafter", key)
