"""Send one request to an endpoint or to an engine of ``peagle local up``, and measure it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from peagle.aws import runtime, sagemaker
from peagle.aws.client import Aws
from peagle.deploy.state import Deployment
from peagle.deploy.status import sandbox_engine
from peagle.engine import client
from peagle.engine.state import LocalEngine
from peagle.protocol import Counters, Piece, acceptance_length, piece_of


@dataclass(frozen=True)
class InvokeResult:
    """The complete answer. Times are in seconds; ``first_token_seconds`` only of a stream."""

    text: str
    output_tokens: int | None
    seconds: float
    first_token_seconds: float | None
    acceptance_length: float | None = None


@dataclass(frozen=True)
class EndpointServer:
    """An endpoint; ``record`` is ``None`` for one that ``peagle deploy`` did not create.

    ``is_chat_model``: the target is a chat model; ``speculates``: it is known to speculate;
    ``stand_in``: what the sandbox serves instead of the target.
    """

    aws: Aws
    name: str
    record: Deployment | None

    @property
    def is_chat_model(self) -> bool:
        plan = self.record.current.plan if self.record else None
        return plan is None or plan.proof.chat

    @property
    def speculates(self) -> bool:
        return self.record is not None and self.record.current.served.k > 0

    @property
    def stand_in(self) -> str | None:
        return sandbox_engine(self.aws, sagemaker.describe(self.aws, self.name)).stand_in

    def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        return runtime.ask(self.aws, self.name, body)

    def stream(self, body: dict[str, Any]) -> Iterator[Piece]:
        return runtime.stream(self.aws, self.name, body)

    def counters(self) -> Counters | None:
        """With one instance only: with several, each call may reach another engine."""
        if self.record is None or self.record.current.served.instance_count > 1:
            return None
        return runtime.counters(self.aws, self.name)


@dataclass(frozen=True)
class LocalServer:
    """An engine of ``peagle local up``; the members are those of ``EndpointServer``."""

    engine: LocalEngine

    @property
    def is_chat_model(self) -> bool:
        return self.engine.chat

    @property
    def speculates(self) -> bool:
        return self.engine.speculates

    def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        return client.ask(self.engine.process.port, body)

    def stream(self, body: dict[str, Any]) -> Iterator[Piece]:
        return client.stream(self.engine.process.port, body)

    def counters(self) -> Counters | None:
        return client.counters(self.engine.process.port) if self.speculates else None


InferenceServer = EndpointServer | LocalServer


def invoke(
    server: InferenceServer,
    body: dict[str, Any],
    on_text: Callable[[str], object] = lambda text: None,
) -> InvokeResult:
    """Send ``body``; ``on_text`` receives the model's reasoning and answer as they arrive.

    The acceptance length is computed from the engine's counters before and after, which include
    other clients' requests. Raises UserError for a body that is too long, and what the server
    raises.
    """
    runtime.encoded(body)
    before = server.counters()
    started = time.monotonic()
    parts: list[str] = []
    tokens, first, thought = None, None, False
    streamed = bool(body.get("stream"))
    for piece in server.stream(body) if streamed else [piece_of(server.ask(body))]:
        if piece.written and first is None and streamed:
            first = time.monotonic() - started
        answers = piece.text and not piece.reasoning and thought
        text = f"\n\n{piece.text}" if answers else piece.written
        thought = bool(piece.reasoning) or (thought and not piece.text)
        parts.append(text)
        tokens = piece.output_tokens if piece.output_tokens is not None else tokens
        on_text(text)
    seconds = time.monotonic() - started
    after = server.counters() if before else None
    length = None
    if before and after and after.drafts >= before.drafts:  # else the engine restarted
        length = acceptance_length(after.since(before))
    return InvokeResult("".join(parts), tokens, seconds, first, length)
