"""A P-EAGLE head whose mask token is the target's end, padding or unknown token.

The masked slots get the embedding of that token. It occurs in text and is trained for another
purpose: with its EOS token, the tiny head has an acceptance length of 2.01 instead of 2.34.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checkpoints.models import reserved_tokens
from peagle.checks.registry import Findings, Rule, for_head
from peagle.checks.rules import placeholder_missing

RULE = Rule("mask-token-used", about="head", vllm_notices="never")

_ROLES = {"eos": "EOS", "pad": "padding", "unk": "unknown"}


@for_head
def check(case: Case, head: Head) -> Findings:
    if not case.is_parallel:
        return
    reserved: dict[str, set[int]] = {
        role: set(tokens) for role, tokens in case.target.special_tokens.items()
    }
    for role, tokens in reserved_tokens(case.target_read).items() if case.target_read else ():
        reserved.setdefault(role, set()).update(tokens)
    for entry in placeholder_missing.RULE.entries(case):
        key, token = placeholder_missing.found_placeholder(head, entry) or ("", None)
        is_id = type(token) is int
        roles = [name for role, name in _ROLES.items() if is_id and token in reserved.get(role, ())]
        if roles:
            message = (
                f"{key} of {head.location} is {token}, the {' and '.join(roles)} token of "
                f"{case.target.id}"
            )
            fix = f"set {key} to the token that the head was trained with; if that is {token}, "
            yield RULE.warning("drafter", message, f"{fix}measure acceptance")
