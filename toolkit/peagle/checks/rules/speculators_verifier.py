"""A head in the speculators format that was trained for a different target (its verifier).

vLLM does not compare them when the target is given too. A head of another model of the same sizes
runs, and nearly no draft is accepted. For a variant, such as an FP8 version or a target of the
user's own with the same class, it is a warning.
"""

from collections.abc import Mapping
from pathlib import PurePosixPath

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.facts import OTHER_HEAD
from peagle.checks.registry import Findings, Rule, for_head
from peagle_serve.heads import classes_of

RULE = Rule("speculators-verifier", about="head", vllm_notices="never")


@for_head
def check(case: Case, head: Head) -> Findings:
    outer = head.document.get("speculators_config")
    verifier = (outer.get("verifier") if isinstance(outer, Mapping) else None) or {}
    name = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
    if not isinstance(name, str) or not name:
        return
    theirs, ours = _last(name), _last(case.target.id)
    if theirs in (ours, _last(case.target.weights)):
        return
    message = f"{head.location} was trained for {name}, but the target is {case.target.id}"
    is_tuned = case.own_target and case.architecture.class_name in classes_of(verifier)
    if ours in theirs or theirs in ours or is_tuned:
        fix = "measure acceptance: the hidden states of a variant differ slightly"
        yield RULE.warning("drafter", message, fix)
    # A verifier that is named by its folder only may still be of the target's class.
    elif name.count("/") == 1 or case.architecture.class_name not in classes_of(verifier):
        yield RULE.error("drafter", message, OTHER_HEAD)


def _last(name: str) -> str:
    return PurePosixPath(name.rstrip("/")).name.lower()
