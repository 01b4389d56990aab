"""A key of --speculative-config that the vLLM version does not have.

vLLM rejects an unknown key at start.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule
from peagle.errors import nearest

RULE = Rule("speculative-setting", about="version", vllm_notices="at start")

_KNOWN = "known"
"""Value of the entry that lists the keys of all versions."""


def check(case: Case) -> Findings:
    keys = set(case.speculative_settings)
    for entry in RULE.entries(case):
        names = set(entry.names)
        known = entry.value == _KNOWN
        for key in sorted(keys - names if known else keys & names):
            fix = nearest(key, entry.names) if known else ""
            yield RULE.of_entry(entry, "drafter", key, fix)
