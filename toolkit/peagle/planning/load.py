"""The load that a plan is for: the longest context, concurrent requests, and their size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from peagle.catalog.schema import Target
from peagle.errors import Fix, OutOfRange
from peagle.findings import Finding, error, warning
from peagle.options import Options
from peagle.planning.plan import Decision, decide
from peagle.speed.models import PRESETS, Workload

USUAL_CONCURRENCY = 8
"""The default. P-EAGLE gains most with few concurrent requests: +55-69 % with one, +5-25 % with 64
(vLLM's blog of 2026-03-13, GPT-OSS-20B on a B200)."""

USUAL_WORKLOAD = Workload(prompt_tokens=2048, output_tokens=256)
"""The default size of a request: a question with some context, which the evidence has, too."""

MIN_LOAD_SHARE = 0.25
"""Minimum share of the load, at full length, that the KV cache must hold, if requests are not
longer. Most requests are much shorter than the longest context, so a cache for all of them would
mostly stay empty; with a smaller one, vLLM queues or preempts requests."""

FURTHER_TURNS = 8
"""How many turns after the usual one the context of a conversation has room for, at least."""

CHAT_TEMPLATE_TOKENS = 128
"""Tokens that a chat template may add to a prompt; that of GPT-OSS adds about 70."""


def with_workload(options: Options) -> Options:
    """The options with the size of requests of their preset; that of a batch is ``batch``.

    Of another prompt the preset's share is cached, and of that its share is shared by all; at least
    what the options say is shared is cached.
    """
    cached, shared = options.cached_prompt_tokens, options.shared_prompt_tokens
    name = options.workload or ("batch" if options.requests is not None else None)
    if name is None:
        return (
            options.model_copy(update={"cached_prompt_tokens": shared})
            if cached is None
            else options
        )
    preset = PRESETS[name]
    size = {"prompt_tokens": preset.prompt_tokens, "output_tokens": preset.output_tokens}
    size = {field: getattr(options, field) or tokens for field, tokens in size.items()}
    if cached is None:
        cached = max(int(size["prompt_tokens"] * preset.cached_share), shared or 0)
    if shared is None:
        shared = cached * preset.shared_prompt_tokens // max(preset.cached_prompt_tokens, 1)
    changes = {"workload": name, "cached_prompt_tokens": cached, "shared_prompt_tokens": shared}
    return options.model_copy(update={**size, **changes})


def choose_length(options: Options, target: Target) -> Decision[int]:
    """The longest context in tokens, at most what the target supports; the rules report a longer
    one from the options. By default the target's, or what requests and the further turns of a
    conversation need, as a power of two; less where only that fits."""
    length, longest = options.max_model_len, target.architecture.max_positions
    if length is not None:
        if length < 1:
            raise OutOfRange(
                f"--max-model-len {length} is less than 1", "use the longest context in tokens"
            )
        # A larger context is rejected; the rejected plan shows the longest possible one.
        return Decision(min(length, longest), findings=_too_short(length, target))
    length = target.default_max_model_len
    because = f"the default for {target.id}, which supports more"
    prompt, output = options.prompt_tokens or 0, options.output_tokens
    needed, cached = prompt + (output or USUAL_WORKLOAD.output_tokens), options.cached_prompt_tokens
    turns = ""
    if cached and cached > (options.shared_prompt_tokens or 0):
        needed += FURTHER_TURNS * (needed - cached)
        turns = f" and {FURTHER_TURNS} more turns"
    if needed > length:
        length, because = needed, f"the tokens of a request{turns}"
        if options.requests is None:
            length, because = 1 << (needed - 1).bit_length(), f"{because}, as a power of two"
    if length >= longest:
        because = f"the maximum of {target.id}"
    length, findings = min(length, longest), []
    if options.fitting_length is not None and options.fitting_length < length:
        findings.append(_shortened(length, options.fitting_length, options.instance_type))
        length, because = options.fitting_length, f"{length:,} tokens do not fit"
    choice = decide(length, "max_model_len", because, shown=f"{length:,}")
    return replace(choice, findings=(*findings, *_too_short(length, target)))


def _shortened(usual: int, length: int, instance_type: str | None) -> Finding:
    """The warning that the default context does not fit."""
    where = f" on {instance_type}" if instance_type else ", on any instance type"
    message = f"the default context of {usual:,} tokens does not fit{where}: {length:,} are planned"
    confirm = Fix(
        f"confirm it with --max-model-len {length}", options=("--max-model-len", f"{length}")
    )
    return warning("context-shortened", "max_model_len", message, confirm)


def shorter_contexts(usual: int, least: int) -> Iterator[int]:
    """Contexts to try where the usual one does not fit: halves of it down to one request."""
    length = usual
    while length > least:
        yield length
        length //= 2
    yield min(usual, least)


def _too_short(length: int, target: Target) -> tuple[Finding, ...]:
    """An error for a context that is too short for the proof."""
    proof = target.proof
    # A token has at least one byte, so this is more than any prompt can take.
    longest = max((len(prompt.encode()) for prompt in proof.prompts), default=0)
    least = longest + proof.max_tokens + (CHAT_TEMPLATE_TOKENS if proof.chat else 0)
    if length >= least:
        return ()
    message = f"the proof's prompts and outputs do not fit into {length:,} tokens"
    fix = Fix(f"use --max-model-len {least} or more", options=("--max-model-len", f"{least}"))
    return (error("context-too-small", "max_model_len", message, fix),)


def choose_load(options: Options, target: Target) -> Decision[None]:
    """Reasons and findings of the length, the workload and the concurrency."""
    length = choose_length(options, target)
    choices = (length, choose_workload(options, target, length.value), choose_concurrency(options))
    reasons = tuple(reason for choice in choices for reason in choice.reasons)
    findings = tuple(finding for choice in choices for finding in choice.findings)
    return Decision(None, reasons, findings)


def choose_concurrency(options: Options) -> Decision[int]:
    """The number of concurrent requests; excess requests queue."""
    if options.concurrency is not None:
        if options.concurrency < 1:
            raise OutOfRange(f"--concurrency {options.concurrency} is less than 1", "use 1")
        return Decision(options.concurrency)
    because = "speculation gains most with few concurrent requests; excess requests queue"
    return decide(USUAL_CONCURRENCY, "concurrency", because)


def choose_workload(options: Options, target: Target, max_model_len: int) -> Decision[Workload]:
    """The tokens of one request; the defaults are shortened to what the context leaves.

    Raises UserError for less than one token, and for a prompt that is all in the cache.
    """
    for flag, tokens in (
        ("--prompt-tokens", options.prompt_tokens),
        ("--output-tokens", options.output_tokens),
    ):
        if tokens is not None and tokens < 1:
            raise OutOfRange(f"{flag} {tokens} is less than 1", "use the tokens of a usual request")
    workload = size_of_requests(options, max_model_len)
    longest = target.architecture.max_positions
    is_sized = options.prompt_tokens is not None or options.output_tokens is not None
    findings = _above_context(workload, options, max_model_len, longest) if is_sized else ()
    if options.prompt_tokens is not None and options.output_tokens is not None:
        return Decision(workload, findings=findings)
    because = "single prompts; --workload, --prompt-tokens and --output-tokens change them"
    shown = f"{workload.prompt_tokens:,} + {workload.output_tokens:,} tokens"
    choice = decide(workload, "workload", because, shown=shown)
    return replace(choice, findings=findings)


def size_of_requests(options: Options, length: int = 1 << 30) -> Workload:
    """The tokens of one request; the defaults are shortened to what the context leaves.

    Raises UserError for a prompt that is all in the cache, and for more shared than cached tokens.
    """
    output, prompt = options.output_tokens, options.prompt_tokens
    if output is None:
        output = max(1, min(USUAL_WORKLOAD.output_tokens, length - (prompt or length // 2)))
    if prompt is None:
        prompt = max(1, min(USUAL_WORKLOAD.prompt_tokens, length - output))
    cached, shared = options.cached_prompt_tokens or 0, options.shared_prompt_tokens or 0
    if not 0 <= cached < prompt:
        flag = "shared_prompt_tokens" if cached == shared else "--cached-prompt-tokens"
        raise OutOfRange(
            f"{flag} {cached:,} is not less than the {prompt:,} tokens of the prompt",
            "give the tokens of the whole prompt with --prompt-tokens",
        )
    if not 0 <= shared <= cached:
        raise OutOfRange(
            f"shared_prompt_tokens {shared:,} is more than the {cached:,} cached tokens",
            "count the shared tokens in --cached-prompt-tokens, too",
        )
    return Workload(prompt, output, cached, shared)


def _above_context(
    workload: Workload, options: Options, length: int, longest: int
) -> tuple[Finding, ...]:
    """An error for requests that exceed the context ``length``; the target supports ``longest``."""
    tokens = workload.prompt_tokens + workload.output_tokens
    if tokens <= length:
        return ()
    if options.prompt_tokens is None:
        where, tokens = "output_tokens", USUAL_WORKLOAD.prompt_tokens + workload.output_tokens
        message = f"answers of {workload.output_tokens:,} tokens leave no room for a prompt in the"
    elif options.output_tokens is None:
        where, tokens = "prompt_tokens", workload.prompt_tokens + USUAL_WORKLOAD.output_tokens
        message = f"prompts of {workload.prompt_tokens:,} tokens leave no room for an answer in the"
    else:
        where = "prompt_tokens"
        sizes = f"{workload.prompt_tokens:,} + {workload.output_tokens:,}"
        message = f"requests of {sizes} tokens exceed the"
    message += f" context of {length:,} tokens"
    shorter = f"lower --{where.replace('_', '-')}"
    if where == "prompt_tokens" and options.output_tokens is not None:
        shorter += " or --output-tokens"
    fix = Fix(shorter)
    if tokens <= longest:
        fix = Fix(
            f"use --max-model-len {tokens}, or {shorter}", options=("--max-model-len", f"{tokens}")
        )
    return (error("requests-above-context", where, message, fix),)
