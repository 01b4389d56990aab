"""An argument that vLLM does not have.

vLLM rejects an unknown argument at start, when the instance already costs money.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule
from peagle.errors import nearest

RULE = Rule("engine-argument", about="version", vllm_notices="at start")


def check(case: Case) -> Findings:
    for entry in RULE.entries(case):
        for name in sorted(case.settings):
            # ``no-`` turns an argument off; ``compilation-config.mode`` sets a key of one.
            plain = name.partition(".")[0].removeprefix("no-")
            if plain not in entry.names:
                yield RULE.of_entry(entry, "vllm", f"--{name}", nearest(plain, entry.names))
