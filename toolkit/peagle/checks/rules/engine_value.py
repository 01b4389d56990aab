"""A switch of vLLM with a value, or an argument that needs a value without one.

vLLM's parser refuses both at start, when the instance already costs money.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule
from peagle.vllm.facts import EITHER, ON_ONLY, SWITCH, facts_of

RULE = Rule("engine-value", about="version", vllm_notices="at start")


def check(case: Case) -> Findings:
    facts = facts_of(case.runtime.vllm)
    for name, value in sorted(case.settings.items()) if facts.exact else ():
        plain = name.removeprefix("no-")
        kind = facts.arguments.get(plain, {}).get("kind", EITHER)
        if kind == ON_ONLY and (name != plain or value is False):
            fix = f"leave --{plain} out: it is off by default"
            yield RULE.error("vllm", f"--{plain} cannot be turned off", fix)
        elif kind in (SWITCH, ON_ONLY) and not isinstance(value, bool):
            message = f"--{name} has the value {value}; vLLM refuses it at start"
            values = "true or false" if kind == SWITCH else "true"
            yield RULE.error("vllm", message, f"write {values}, or leave it out")
        elif kind not in (SWITCH, ON_ONLY, EITHER) and isinstance(value, bool):
            fix = f"give it one: --{plain} VALUE"
            yield RULE.error("vllm", f"--{name} requires a value", fix)
