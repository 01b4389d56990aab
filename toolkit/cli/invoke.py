"""``peagle invoke``: ask an endpoint, and see the answer as it arrives."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import click

from toolkit.aws import endpoints, runtime
from toolkit.aws.records import Deployment
from toolkit.aws.session import Aws
from toolkit.aws.status import told_by_sandbox
from toolkit.cli.cloud import Account, endpoint_options
from toolkit.cli.console import json_option, print_json, say
from toolkit.errors import UserError
from toolkit.sandbox.bundled import engine_version
from toolkit.wire import Counters, Piece, acceptance_length, piece_of, request_body


@dataclass(frozen=True)
class Answer:
    """The whole answer. Times are seconds; ``first_token_seconds`` only of a streamed one."""

    text: str
    output_tokens: int | None
    seconds: float
    first_token_seconds: float | None
    acceptance_length: float | None = None


@click.command(epilog="Example: peagle invoke peagle-tiny 'What does os.path.join do?' --sandbox")
@endpoint_options
@click.argument("prompt")
@click.option("--stream/--no-stream", default=True, help="[default: stream]")
@click.option("--chat/--completion", default=None, help="[default: as the target is made for]")
@click.option("--max-tokens", type=click.IntRange(1), default=256, show_default=True)
@click.option("--temperature", type=click.FloatRange(0.0), default=0.0, show_default=True)
@json_option
def invoke(
    aws: Aws,
    name: str,
    record: Deployment | None,
    account: Account,
    prompt: str,
    stream: bool,
    chat: bool | None,
    max_tokens: int,
    temperature: float,
    as_json: bool,
) -> None:
    """Ask the endpoint NAME; with PROMPT - the prompt is read from standard input.

    AWS ends answers that are not streamed after 60 seconds. The acceptance length is what the
    engine counted meanwhile; others who use the endpoint count too.
    """
    text = _text(prompt)
    body = request_body(
        text,
        chat=_is_for_chat(record) if chat is None else chat,
        max_tokens=max_tokens,
        temperature=temperature,
        stream=stream,
    )
    runtime.encoded(body)
    if account.sandbox:
        _warn(aws, name, record, temperature)
    alone = record is not None and record.current.plan.instance_count == 1
    before = runtime.counters(aws, name) if alone else None
    answer = _ask(aws, name, body, show=not as_json)
    answer = _measured(answer, before, aws, name)
    if as_json:
        print_json(vars(answer))
    else:
        say(_summary(answer))


def _is_for_chat(record: Deployment | None) -> bool:
    """Of an endpoint that deploy did not make nothing is known: most are for chat."""
    return record is None or record.current.plan.proof.chat


def _warn(aws: Aws, name: str, record: Deployment | None, temperature: float) -> None:
    """What of the sandbox's answer is not as on AWS."""
    stand_in = told_by_sandbox(aws, endpoints.describe(aws, name)).stand_in
    if stand_in:
        say(f"Answered by {stand_in}, which stands in for a target too large for this machine.")
    drafts = record is not None and record.current.plan.speculation is not None
    if temperature > 0 and drafts:
        say(f"vLLM {engine_version()} on a CPU answers with noise when it drafts and samples "
            "(vllm issue 55005): use --temperature 0 here.")  # fmt: skip


def _text(prompt: str) -> str:
    """The prompt as text. Raises UserError when it is empty or not UTF-8."""
    data = sys.stdin.buffer.read() if prompt == "-" else prompt.encode("utf-8", "surrogateescape")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"the prompt is not UTF-8 (byte {error.start + 1})", "convert it, as with iconv"
        ) from error
    if not text.strip():
        raise UserError("the prompt is empty", "say something, or pipe it in: peagle invoke NAME -")
    return text


def _ask(aws: Aws, name: str, body: dict[str, Any], show: bool) -> Answer:
    started = time.monotonic()
    parts: list[str] = []
    tokens, first = None, None
    for piece in _pieces(aws, name, body):
        if piece.text and first is None and body.get("stream"):
            first = time.monotonic() - started
        parts.append(piece.text)
        tokens = piece.output_tokens if piece.output_tokens is not None else tokens
        if show:
            click.echo(piece.text, nl=False)
    if show:
        click.echo()
    return Answer("".join(parts), tokens, time.monotonic() - started, first)


def _pieces(aws: Aws, name: str, body: dict[str, Any]) -> Iterator[Piece]:
    if body.get("stream"):
        yield from runtime.stream(aws, name, body)
    else:
        yield piece_of(runtime.ask(aws, name, body))


def _measured(answer: Answer, before: Counters | None, aws: Aws, name: str) -> Answer:
    """The answer with the acceptance length of what was drafted since ``before``, if any tells.

    An engine that was started anew meanwhile counts from zero again.
    """
    after = runtime.counters(aws, name) if before else None
    if before is None or after is None or after.drafts < before.drafts:
        return answer
    return replace(answer, acceptance_length=acceptance_length(after.since(before)))


def _summary(answer: Answer) -> str:
    parts = [f"{answer.seconds:.1f} s"]
    if answer.output_tokens is not None:
        parts.insert(0, f"{answer.output_tokens} tokens")
    if answer.first_token_seconds is not None:
        parts.append(f"first after {answer.first_token_seconds:.2f} s")
    if answer.acceptance_length is not None:
        parts.append(f"acceptance length {answer.acceptance_length:.2f}")
    return f"[{', '.join(parts)}]"
