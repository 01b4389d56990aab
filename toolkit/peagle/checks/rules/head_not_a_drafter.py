"""A drafter location that is not a draft head.

Given a model's folder or an empty config as the head, vLLM fails while it loads the weights, after
minutes on a paid instance.
"""

from peagle.case import Case
from peagle.checks.facts import OTHER_HEAD
from peagle.checks.registry import Findings, Rule
from peagle_serve.heads import classes_of, is_head

RULE = Rule("head-not-a-drafter", about="head", vllm_notices="at start")


def check(case: Case) -> Findings:
    checkpoint = case.drafter_checkpoint
    if checkpoint is None or not case.is_eagle or is_head(checkpoint.config):
        return
    what = ", ".join(classes_of(checkpoint.config)) or "no class"
    message = (
        f"{checkpoint.location} is not a draft head: its config.json names {what} and has no key "
        "of an EAGLE-3 or P-EAGLE head"
    )
    yield RULE.error("drafter", message, OTHER_HEAD)
