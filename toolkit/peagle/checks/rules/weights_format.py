"""A load format that reads something other than safetensors, such as pickles, which may run code.

The header of a safetensors file is JSON, and the rest is numbers, so loading one runs no code.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule
from peagle_serve.environment_checks import SAFE_FORMATS

RULE = Rule("weights-format", about="load", vllm_notices="never")


def check(case: Case) -> Findings:
    named = str(case.settings.get("load-format", "auto")).strip().lower()
    if named not in SAFE_FORMATS:
        yield RULE.error(
            "vllm",
            f"--load-format {named} reads other files than safetensors, which may run code",
            f"leave it out, or use one of {', '.join(sorted(SAFE_FORMATS))}",
        )
