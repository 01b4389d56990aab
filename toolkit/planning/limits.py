"""How long a context, and how many requests at the same time."""

from __future__ import annotations

from toolkit.catalog.models import Drafter, Target
from toolkit.errors import UserError
from toolkit.findings import Finding, error, warning
from toolkit.planning.choice import Choice, chosen
from toolkit.planning.models import Options

USUAL_CONCURRENCY = 8
"""Where no one says more. P-EAGLE gains most with few requests at a time: +55-69 % with one,
+5-25 % with 64 (vLLM's blog of 2026-03-13, GPT-OSS-20B on a B200)."""

CHAT_TEMPLATE_TOKENS = 128
"""Room for what a chat template puts around a prompt; that of GPT-OSS takes about 70 tokens."""


def choose_length(options: Options, target: Target, drafter: Drafter | None) -> Choice[int]:
    """The longest context in tokens, at most what the target can do; asking for more is a
    finding."""
    length = options.max_model_len
    if length is None:
        because = f"the catalogue's choice for {target.id}, which could do more"
        if target.default_max_model_len >= target.architecture.max_positions:
            because = f"all that {target.id} can do"
        length = target.default_max_model_len
        choice = chosen(length, "max_model_len", because, shown=f"{length:,}")
    elif length < 1:
        raise UserError(f"--max-model-len {length} is less than 1", "give the longest context")
    else:
        choice = Choice(length)
    findings = (*_too_short(choice.value, target), *_too_long(choice.value, target, drafter))
    # Beyond that the plan is refused; what it shows is for the longest context that there is.
    possible = min(choice.value, target.architecture.max_positions)
    return Choice(possible, choice.reasons, findings)


def _too_short(length: int, target: Target) -> tuple[Finding, ...]:
    """An endpoint whose context is too short for the proof would answer it with errors only."""
    proof = target.proof
    # A token has at least one byte, so this is more than any prompt can take.
    longest = max((len(prompt.encode()) for prompt in proof.prompts), default=0)
    least = longest + proof.max_tokens + (CHAT_TEMPLATE_TOKENS if proof.chat else 0)
    if length >= least:
        return ()
    message = f"the prompts of the proof and their answers do not fit into {length:,} tokens"
    fix = f"use --max-model-len {least} or more"
    return (error("context-too-small", "max_model_len", message, fix),)


def _too_long(length: int, target: Target, drafter: Drafter | None) -> tuple[Finding, ...]:
    if length > target.architecture.max_positions:
        most = target.architecture.max_positions
        message = f"{length:,} tokens are more than the {most:,} that {target.id} can do"
        fix = f"use --max-model-len {most} or less"
        return (error("context-above-target", "max_model_len", message, fix),)
    if drafter is not None and drafter.max_positions and length > drafter.max_positions:
        most = drafter.max_positions
        message = (
            f"{drafter.title} was made for {most:,} tokens, and the context may have {length:,}"
        )
        fix = f"use --max-model-len {most}, or expect few accepted drafts beyond that"
        return (warning("context-above-drafter", "max_model_len", message, fix),)
    return ()


def choose_concurrency(options: Options, drafter: Drafter | None) -> Choice[int]:
    """How many requests run at the same time; more wait their turn."""
    if options.concurrency is not None:
        if options.concurrency < 1:
            raise UserError(f"--concurrency {options.concurrency} is less than 1", "use 1")
        return Choice(options.concurrency)
    because = "speculation gains most with few requests at a time; more than these wait"
    if drafter is None:
        because = "the same as with speculation, so that the two compare"
    return chosen(USUAL_CONCURRENCY, "concurrency", because)
