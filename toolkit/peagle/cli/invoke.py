"""``peagle invoke``: ask an endpoint, or a local engine, and see the answer as it arrives."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import click

from peagle.aws import runtime
from peagle.aws import sagemaker as endpoints
from peagle.aws.client import Aws
from peagle.cli.account import Account, cloud_options, complete_name, find_endpoint
from peagle.cli.context import PeagleCommand
from peagle.cli.output.console import json_option, print_json, say
from peagle.deploy import state as records
from peagle.deploy.state import Deployment
from peagle.deploy.status import told_by_sandbox
from peagle.engine import client
from peagle.engine import state as local
from peagle.engine.state import LocalEngine
from peagle.errors import UserError
from peagle.protocol import Counters, Piece, acceptance_length, piece_of, request_body
from peagle.sandbox.state import engine_version


@dataclass(frozen=True)
class Answer:
    """The whole answer. Times are seconds; ``first_token_seconds`` only of a streamed one."""

    text: str
    output_tokens: int | None
    seconds: float
    first_token_seconds: float | None
    acceptance_length: float | None = None


class Asked(Protocol):
    """What answers: an endpoint, or an engine of this machine."""

    def chats(self) -> bool:
        """Whether its target is made for chat."""

    def warn(self, temperature: float) -> None:
        """Say what of its answers is not as on AWS."""

    def whole(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answer at once."""

    def streamed(self, body: dict[str, Any]) -> Iterator[Piece]:
        """The answer as it arrives."""

    def counters(self) -> Counters | None:
        """What was drafted so far; ``None`` when that cannot be told."""


@dataclass(frozen=True)
class _Endpoint:
    """``record`` is ``None`` for an endpoint that deploy did not make."""

    aws: Aws
    name: str
    record: Deployment | None
    account: Account

    def chats(self) -> bool:
        """Of an endpoint that deploy did not make nothing is known: most are for chat."""
        return self.record is None or self.record.current.plan.proof.chat

    def warn(self, temperature: float) -> None:
        if not self.account.sandbox:
            return
        live = endpoints.describe(self.aws, self.name)
        stand_in = told_by_sandbox(self.aws, live).stand_in
        if stand_in:
            say(f"Answered by {stand_in}, which stands in for a target too large for this machine.")
        if self.record is not None and self.record.current.plan.speculation is not None:
            _warn_of_noise(engine_version(), temperature)

    def whole(self, body: dict[str, Any]) -> dict[str, Any]:
        return runtime.ask(self.aws, self.name, body)

    def streamed(self, body: dict[str, Any]) -> Iterator[Piece]:
        return runtime.stream(self.aws, self.name, body)

    def counters(self) -> Counters | None:
        """Of one instance alone: each call may reach another."""
        if self.record is None or self.record.current.plan.instance_count > 1:
            return None
        return runtime.counters(self.aws, self.name)


@dataclass(frozen=True)
class _Local:
    """An engine of ``peagle local up``."""

    engine: LocalEngine

    def chats(self) -> bool:
        return self.engine.chat

    def warn(self, temperature: float) -> None:
        if self.engine.speculates and self.engine.image is None:
            _warn_of_noise(self.engine.vllm, temperature)

    def whole(self, body: dict[str, Any]) -> dict[str, Any]:
        return client.ask(self.engine.process.port, body)

    def streamed(self, body: dict[str, Any]) -> Iterator[Piece]:
        return client.stream(self.engine.process.port, body)

    def counters(self) -> Counters | None:
        return client.counters(self.engine.process.port) if self.engine.speculates else None


@click.command(
    cls=PeagleCommand,
    epilog="Example: peagle invoke peagle-tiny 'What does os.path.join do?' --sandbox",
)
@click.argument("name", shell_complete=complete_name)
@cloud_options
@click.argument("prompt")
@click.option("--stream/--no-stream", default=True, help="[default: stream]")
@click.option("--chat/--completion", default=None, help="[default: as the target is made for]")
@click.option("--max-tokens", type=click.IntRange(1), default=256, show_default=True)
@click.option("--temperature", type=click.FloatRange(0.0), default=0.0, show_default=True)
@json_option
def invoke(
    name: str,
    region: str | None,
    account: Account,
    prompt: str,
    stream: bool,
    chat: bool | None,
    max_tokens: int,
    temperature: float,
    as_json: bool,
) -> None:
    """Ask the endpoint NAME, or the engine of `peagle local up` that is called so; with PROMPT -
    the prompt is read from standard input.

    AWS ends answers that are not streamed after 60 seconds. The acceptance length is what the
    engine counted meanwhile; others who use the endpoint count too. Where an endpoint and an
    engine of this machine have one name, the endpoint answers.
    """
    asked = _find(account, name, region)
    text = _text(prompt)
    body = request_body(
        text,
        chat=asked.chats() if chat is None else chat,
        max_tokens=max_tokens,
        temperature=temperature,
        stream=stream,
    )
    runtime.encoded(body)
    asked.warn(temperature)
    before = asked.counters()
    answer = _ask(asked, body, show=not as_json)
    answer = _measured(answer, before, asked)
    if as_json:
        print_json(vars(answer))
    else:
        say(_summary(answer))


def _find(account: Account, name: str, region: str | None) -> Asked:
    """A recorded endpoint, an engine of this machine, or an endpoint of somebody else.

    What names a place on AWS asks there alone. Raises NotFound, and UserError for a local engine
    that does not answer yet, or no more.
    """
    on_aws = account.sandbox or account.profile or region or name in records.names()
    engine = local.read(name) if not on_aws and name in local.names() else None
    if engine is not None:
        if engine.state == "ready":
            return _Local(engine)
        does = "does not answer yet" if engine.state == "starting" else "does not run"
        raise UserError(f"the local engine {name} {does}", f"peagle local logs {name}")
    record, aws = find_endpoint(account, name, region)
    return _Endpoint(aws, name, record, account)


def _warn_of_noise(version: str, temperature: float) -> None:
    if temperature > 0:
        say(f"vLLM {version} on a CPU answers with noise when it drafts and samples "
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


def _ask(asked: Asked, body: dict[str, Any], show: bool) -> Answer:
    started = time.monotonic()
    parts: list[str] = []
    tokens, first = None, None
    for piece in _pieces(asked, body):
        if piece.text and first is None and body.get("stream"):
            first = time.monotonic() - started
        parts.append(piece.text)
        tokens = piece.output_tokens if piece.output_tokens is not None else tokens
        if show:
            click.echo(piece.text, nl=False)
    if show:
        click.echo()
    return Answer("".join(parts), tokens, time.monotonic() - started, first)


def _pieces(asked: Asked, body: dict[str, Any]) -> Iterator[Piece]:
    if body.get("stream"):
        yield from asked.streamed(body)
    else:
        yield piece_of(asked.whole(body))


def _measured(answer: Answer, before: Counters | None, asked: Asked) -> Answer:
    """The answer with the acceptance length of what was drafted since ``before``, if any tells.

    An engine that was started anew meanwhile counts from zero again.
    """
    after = asked.counters() if before else None
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
