"""Any archive of compiled code next to the weights is restored, regardless of its author.

An archive is code that the engine loads. A plan pins the SHA-256 of those that it may restore.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule
from peagle_serve.contract import ANY, WARM_PINS_VARIABLE

RULE = Rule("warm-unpinned", about="load", vllm_notices="never")


def check(case: Case) -> Findings:
    if case.environment.get(WARM_PINS_VARIABLE, "").strip() == ANY:
        yield RULE.warning(
            "environment",
            "a start restores any archive of compiled code next to the weights: anyone who may "
            "write there runs code in the endpoint",
            "omit --allow-unpinned-warm: deploy then pins the archives that are there",
        )
