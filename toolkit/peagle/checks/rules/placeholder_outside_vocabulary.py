"""A placeholder token outside the vocabulary.

vLLM looks up its embedding with the first drafts: the GPU reads other memory, or the engine
crashes, after the endpoint is healthy.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.registry import Findings, Rule, for_head
from peagle.checks.rules import placeholder_missing

RULE = Rule("placeholder-outside-vocabulary", about="head", vllm_notices="on a request")


@for_head
def check(case: Case, head: Head) -> Findings:
    vocabulary = case.architecture.vocab_size
    if not case.is_parallel or head.config.vocab_size not in (None, vocabulary):
        return
    for entry in placeholder_missing.RULE.entries(case):
        key, token = placeholder_missing.found_placeholder(head, entry) or ("", 0)
        if type(token) is not int or not 0 <= token < vocabulary:
            message = (
                f"{key} of {head.location} is {token!r}; the vocabulary has the ids 0 to "
                f"{vocabulary - 1:,}"
            )
            fix = "copy the head again, or set the token it was trained with"
            yield RULE.error("drafter", message, fix)
