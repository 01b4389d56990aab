"""An argument that vLLM does not have, or that it announces to remove.

vLLM rejects an unknown argument at start, when the instance already costs money.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule
from peagle.errors import nearest
from peagle.vllm.facts import facts_of, first_version

RULE = Rule("engine-argument", about="version", vllm_notices="at start")


def check(case: Case) -> Findings:
    vllm, facts = case.runtime.vllm, facts_of(case.runtime.vllm)
    report = RULE.error if facts.exact else RULE.warning
    for name in sorted(case.settings):
        # ``no-`` turns an argument off; ``compilation-config.mode`` sets a key of one.
        plain = name.partition(".")[0].removeprefix("no-")
        if plain in facts.deprecated:
            message = f"vLLM {facts.version}: {facts.deprecated[plain]['is']}"
            yield RULE.note("vllm", message, f"leave --{plain} out")
        if plain in facts.arguments:
            continue
        later = first_version("arguments", plain, vllm)
        fix = f"use vLLM {later} or later, or leave it out" if later else ""
        message = f"--{name}: vLLM {facts.version} has no such argument"
        if not facts.exact:
            message += f"; {vllm} may not have it either"
        yield report("vllm", message, fix or nearest(plain, facts.arguments) or "leave it out")
