"""A value that an argument of vLLM does not take: none of its choices, or no number.

vLLM's parser refuses it at start, when the instance already costs money.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule
from peagle.errors import nearest
from peagle.vllm.facts import CHOICE, NUMBER, WHOLE_NUMBER, facts_of

RULE = Rule("engine-choice", about="version", vllm_notices="at start")

_NUMBERS: dict[str, tuple[type, ...]] = {WHOLE_NUMBER: (int,), NUMBER: (int, float)}

_OF_ITS_OWN = "gpu-memory-utilization"
"""It has a rule of its own."""


def check(case: Case) -> Findings:
    facts = facts_of(case.runtime.vllm)
    for name, value in sorted(case.settings.items()) if facts.exact else ():
        argument = facts.arguments.get(name, {})
        kind, choices = argument.get("kind"), argument.get("choices", ())
        # A switch's value is the matter of ``engine-value``.
        if isinstance(value, bool) or name == _OF_ITS_OWN:
            continue
        message = f"--{name} {value}: vLLM {facts.version} refuses it at start"
        if kind == CHOICE and str(value) not in choices:
            fix = nearest(str(value), choices) or f"use one of {', '.join(choices)}"
            yield RULE.error("vllm", message, fix)
        elif kind in _NUMBERS and not isinstance(value, _NUMBERS[kind]):
            yield RULE.error("vllm", message, f"use a {kind}")
