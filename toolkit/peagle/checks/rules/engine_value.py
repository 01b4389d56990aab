"""A switch of vLLM with a value, or an argument that needs a value without one.

vLLM's parser refuses both at start, when the instance already costs money.
"""

from peagle.case import Case
from peagle.catalog.tables import applicable_rules
from peagle.checks.registry import Findings, Rule
from peagle.checks.rules.engine_argument import RULE as ARGUMENTS

RULE = Rule("engine-value", about="version", vllm_notices="at start")

_ON_ONLY = "on-only"
"""Value of the entry that lists the switches that cannot be turned off with ``--no-``."""


def check(case: Case) -> Findings:
    entries = RULE.entries(case)
    switches = {name for entry in entries for name in entry.names}
    known = {
        name
        for entry in applicable_rules(case.version_rules, ARGUMENTS.code, case.runtime.vllm)
        for name in entry.names
    }
    for entry in entries:
        on_only = entry.value == _ON_ONLY
        for name, value in sorted(case.settings.items()):
            plain = name.removeprefix("no-")
            off = name != plain or value is False
            if plain in entry.names and on_only and off:
                fix = f"leave --{plain} out: it is off by default"
                yield RULE.of_entry(entry, "vllm", f"--{plain} cannot be turned off", fix)
            elif plain in entry.names and not isinstance(value, bool):
                yield RULE.of_entry(entry, "vllm", f"--{name} has the value {value}")
            elif not on_only and plain in known - switches and isinstance(value, bool):
                fix = f"give it one: --{plain} VALUE"
                yield RULE.of_entry(entry, "vllm", f"--{name} requires a value", fix)
