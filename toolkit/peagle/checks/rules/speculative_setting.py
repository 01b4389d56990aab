"""A key or a method of --speculative-config that the vLLM version does not have.

vLLM rejects it at start. Versions before 0.28.0 are in version_rules.yaml.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule
from peagle.errors import nearest
from peagle.vllm.facts import facts_of, first_version
from peagle.vllm.versions import in_range

RULE = Rule("speculative-setting", about="version", vllm_notices="at start")

_KNOWN = "known"
"""Value of the entry that lists the keys of all versions."""

_FROM_WHEELS = ">=0.28.0"


def check(case: Case) -> Findings:
    keys = set(case.speculative_settings)
    for entry in RULE.entries(case):
        names = set(entry.names)
        known = entry.value == _KNOWN
        for key in sorted(keys - names if known else keys & names):
            fix = nearest(key, entry.names) if known else ""
            yield RULE.of_entry(entry, "drafter", key, fix)
        keys -= set() if known else names
    vllm = case.runtime.vllm
    if not in_range(vllm, _FROM_WHEELS):
        return
    facts = facts_of(vllm)
    report = RULE.error if facts.exact else RULE.warning
    for key in sorted(keys - facts.speculative_keys.keys()):
        later = first_version("speculative_keys", key, vllm)
        fix = f"use vLLM {later} or later, or leave it out" if later else ""
        message = f"{key}: --speculative-config of vLLM {facts.version} has no such key"
        yield report("drafter", message, fix or nearest(key, facts.speculative_keys) or "remove it")
    method = case.drafter.method if case.drafter else None
    if method is not None and method not in facts.speculative_methods:
        message = f"vLLM {facts.version} has no method {method}"
        yield report("drafter", message, "use an older vLLM version, or another drafter")
