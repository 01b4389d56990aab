"""A K other than the recommended one for a P-EAGLE head whose trained K is unknown.

Only a measurement shows whether such a K is too large.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule
from peagle.checks.rules.k_above_trained import k_trained
from peagle.errors import Fix

RULE = Rule("k-training-unknown", about="load", vllm_notices="never")


def check(case: Case) -> Findings:
    drafter = case.drafter
    if drafter is None or not case.is_parallel or k_trained(case) is not None:
        return
    if case.k != drafter.k_recommended:
        best = str(drafter.k_recommended)
        fix = Fix(f"if few drafts are accepted, try --k {best}", options=("--k", best))
        yield RULE.note("k", f"{drafter.title}: trained K unknown", fix)
