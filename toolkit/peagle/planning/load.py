"""The load that a plan is for: the longest context, concurrent requests, and their size."""

from __future__ import annotations

from collections.abc import Iterator

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
        cached = shared if cached is None else cached
        return options.model_copy(update={"cached_prompt_tokens": cached})
    preset = PRESETS[name]
    prompt = options.prompt_tokens or preset.prompt_tokens
    if cached is None:
        cached = max(int(prompt * preset.cached_share), shared or 0)
    if shared is None:
        shared = cached * preset.shared_prompt_tokens // max(preset.cached_prompt_tokens, 1)
    return options.model_copy(
        update={
            "workload": name,
            "prompt_tokens": prompt,
            "cached_prompt_tokens": cached,
            "shared_prompt_tokens": shared,
            "output_tokens": options.output_tokens or preset.output_tokens,
        }
    )


def choose_length(options: Options, target: Target) -> Decision[int]:
    """The longest context in tokens, at most what the target supports; the rules report a longer
    one from the options. By default the target's, or what requests and the further turns of a
    conversation need, as a power of two; less where only that fits."""
    longest, findings = target.architecture.max_positions, list[Finding]()
    because = f"the default for {target.id}, which supports more"
    if options.max_model_len is not None:
        length = min(options.max_model_len, longest)
    else:
        length, turns = target.default_max_model_len, ""
        output, cached = options.output_tokens, options.cached_prompt_tokens
        needed = (options.prompt_tokens or 0) + (output or USUAL_WORKLOAD.output_tokens)
        if cached and cached > (options.shared_prompt_tokens or 0):
            needed += FURTHER_TURNS * (needed - cached)
            turns = f" and {FURTHER_TURNS} more turns"
        if needed > length:
            length, because = needed, f"the tokens of a request{turns}"
            if options.requests is None:
                length, because = 1 << (needed - 1).bit_length(), f"{because}, as a power of two"
        if length >= longest:
            length, because = longest, f"the maximum of {target.id}"
        fitting = options.fitting_length
        if fitting is not None and fitting < length:
            on = options.instance_type
            where = f" on {on}" if on else ", on any instance type"
            because = f"{length:,} tokens do not fit"
            message = f"the default context of {length:,} tokens does not fit{where}: "
            message += f"{fitting:,} are planned"
            option = ("--max-model-len", f"{fitting}")
            confirm = Fix(f"confirm it with --max-model-len {fitting}", options=option)
            findings.append(warning("context-shortened", "max_model_len", message, confirm))
            length = fitting
    # A token has at least one byte, so this is more than any prompt of the proof can take.
    proof = target.proof
    prompt = max((len(prompt.encode()) for prompt in proof.prompts), default=0)
    least = prompt + proof.max_tokens + (CHAT_TEMPLATE_TOKENS if proof.chat else 0)
    if length < least:
        message = f"the proof's prompts and outputs do not fit into {length:,} tokens"
        fix = Fix(f"use --max-model-len {least} or more", options=("--max-model-len", f"{least}"))
        findings.append(error("context-too-small", "max_model_len", message, fix))
    if options.max_model_len is not None:
        return Decision(length, findings=tuple(findings))
    return decide(length, "max_model_len", because, f"{length:,}", findings)


def shorter_contexts(usual: int, least: int) -> Iterator[int]:
    """Contexts to try where the usual one does not fit: halves of it down to one request."""
    length = usual
    while length > least:
        yield length
        length //= 2
    yield min(usual, least)


def choose_concurrency(options: Options) -> Decision[int]:
    """The number of concurrent requests; excess requests queue."""
    if options.concurrency is not None:
        return Decision(options.concurrency)
    because = "speculation gains most with few concurrent requests; excess requests queue"
    return decide(USUAL_CONCURRENCY, "concurrency", because)


def choose_workload(options: Options, target: Target, max_model_len: int) -> Decision[Workload]:
    """The tokens of one request; the defaults are shortened to what the context leaves.

    An error reports requests that exceed it. Raises UserError as ``size_of_requests`` does.
    """
    prompt, output = options.prompt_tokens, options.output_tokens
    workload, findings = size_of_requests(options, max_model_len), list[Finding]()
    if (prompt or output) and workload.tokens > max_model_len:
        needed = (prompt or USUAL_WORKLOAD.prompt_tokens) + (output or USUAL_WORKLOAD.output_tokens)
        message = f"requests of {needed:,} tokens exceed the context of {max_model_len:,} tokens"
        given = {"--prompt-tokens": prompt, "--output-tokens": output}
        fix = Fix(f"lower {' or '.join(flag for flag, tokens in given.items() if tokens)}")
        if needed <= target.architecture.max_positions:
            option = ("--max-model-len", f"{needed}")
            fix = Fix(f"use --max-model-len {needed}, or {fix.sentence}", options=option)
        where = "prompt_tokens" if prompt else "output_tokens"
        findings.append(error("requests-above-context", where, message, fix))
    if prompt is not None and output is not None:
        return Decision(workload, findings=tuple(findings))
    because = "single prompts; --workload, --prompt-tokens and --output-tokens change them"
    shown = f"{workload.prompt_tokens:,} + {workload.output_tokens:,} tokens"
    return decide(workload, "workload", because, shown, findings)


def size_of_requests(options: Options, length: int = 1 << 30) -> Workload:
    """The tokens of one request; the defaults are shortened to what the context leaves.

    Raises OutOfRange for a prompt that is all in the cache, and for more shared than cached tokens.
    """
    output, prompt = options.output_tokens, options.prompt_tokens
    if output is None:
        output = max(1, min(USUAL_WORKLOAD.output_tokens, length - (prompt or length // 2)))
    if prompt is None:
        prompt = max(1, min(USUAL_WORKLOAD.prompt_tokens, length - output))
    cached, shared = options.cached_prompt_tokens or 0, options.shared_prompt_tokens or 0
    if not 0 <= shared <= cached < prompt:
        raise OutOfRange(
            f"of the {prompt:,} tokens of a prompt, {cached:,} are cached and {shared:,} shared",
            "cached tokens are fewer than --prompt-tokens, and shared ones are among them",
        )
    return Workload(prompt, output, cached, shared)
