"""Send one request to an endpoint or to an engine of ``peagle local up``, and measure it.

An endpoint that scaled to zero refuses it at once and counts it; an alarm on that count starts a
copy. The engine saw nothing of what was refused, so that a retry neither loses nor doubles a
request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from peagle.aws import autoscaling, runtime
from peagle.aws.client import Aws, Clock
from peagle.aws.errors import AccessDenied, EngineRejected, NoCopyRuns
from peagle.aws.sagemaker import Endpoint
from peagle.deploy.state import Deployment
from peagle.engine import local
from peagle.engine.state import LocalEngine
from peagle.errors import CloudError, EngineError, Fix
from peagle.protocol import Counters, Piece, acceptance_length, parse_piece, request_body
from peagle.text import format_duration

T = TypeVar("T")

RETRY_SECONDS = 5.0
"""Between two requests: each is counted, so that the alarm stays on until a copy runs."""

OnText = Callable[[str], object]


class NotAwake(CloudError, code="not-awake"):
    """The endpoint scaled to zero, and did not wake up in the time that was given."""


@dataclass(frozen=True)
class WakeUpOptions:
    """How long to wait, in seconds, and what to call meanwhile, with a text."""

    timeout: float = 30 * 60
    on_progress: Callable[[str], object] = lambda text: None
    clock: Clock = field(default_factory=Clock)


def _retry_until_awake(
    aws: Aws, name: str, send: Callable[[], T], options: WakeUpOptions
) -> tuple[T, float | None]:
    """The response of ``send``, and how many seconds it waited for a copy; ``None`` if one ran."""
    clock, began = options.clock, options.clock.now()
    refused = False
    while True:
        sent = clock.now()
        try:
            return send(), sent - began if refused else None
        except NoCopyRuns:
            scales: object = True
            if not refused:
                with suppress(AccessDenied):
                    scales = autoscaling.registered(aws, name, policies=False)
            if not scales:
                message = f"no copy of {name} runs, and it does not scale automatically"
                fix = Fix("start one", ("peagle", "scale", name, "--to", "1"))
                raise NoCopyRuns(message, fix) from None
            refused = True
        left = began + options.timeout - clock.now()
        if left <= 0:
            limit = format_duration(options.timeout)
            message = f"{name} scaled to zero, and did not wake up within {limit}"
            fix = Fix("look at what it waits for", ("peagle", "status", name))
            raise NotAwake(message, fix)
        options.on_progress(f"{name} wakes up: {format_duration(options.timeout - left)}")
        clock.sleep(min(RETRY_SECONDS, left))


def wake(
    aws: Aws, live: Endpoint, record: Deployment | None, options: WakeUpOptions | None = None
) -> float | None:
    """Wake an endpoint that scaled to zero, before requests whose times or drafts count. Returns
    the seconds that it took; ``None`` if a copy runs already. Raises NoCopyRuns and NotAwake."""
    if live.component is None or live.engine_count or live.status != "InService":
        return None
    plan = record.current.plan if record else None
    body = request_body("Hello", chat=plan is None or plan.proof.chat, max_tokens=1)

    def send() -> None:
        with suppress(EngineRejected):  # then the engine runs
            runtime.ask(aws, live.name, body)

    return _retry_until_awake(aws, live.name, send, options or WakeUpOptions())[1]


@dataclass(frozen=True)
class InvokeRequest:
    """A prompt and how to answer it. ``chat`` is by default what the target is made for. A
    ``payload`` is the complete body, and the other fields do not count."""

    prompt: str
    chat: bool | None = None
    max_tokens: int = 256
    temperature: float = 0.0
    stream: bool = True
    payload: dict[str, Any] | None = None

    def body(self, is_chat_model: bool) -> dict[str, Any]:
        """The body, for a target that is made for chats or not."""
        if self.payload is not None:
            return self.payload
        return request_body(
            self.prompt,
            chat=is_chat_model if self.chat is None else self.chat,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            stream=self.stream,
        )


@dataclass(frozen=True)
class InvokeResult:
    """The complete answer. Times are in seconds; ``first_token_seconds`` only of a stream."""

    text: str
    output_tokens: int | None
    seconds: float
    first_token_seconds: float | None
    acceptance_length: float | None = None
    waited_seconds: float | None = None


def invoke(
    aws: Aws,
    name: str,
    record: Deployment | None,
    request: InvokeRequest,
    on_text: OnText = lambda text: None,
    wake_up: WakeUpOptions | None = None,
) -> InvokeResult:
    """Send the request to the endpoint; ``on_text`` receives the answer as it arrives. ``record``
    is ``None`` for an endpoint that ``peagle deploy`` did not create. The acceptance length is from
    the engine's counters, which include other clients' requests. Raises NotAwake and CloudError."""
    revision = record.current if record else None
    plan = revision.plan if revision else None
    # AWS's image has no counters, and answers the question for them with an error that counts as
    # one of the endpoint. With several engines each reading may reach another one.
    source = plan.proof.source if plan else None
    if revision and revision.proof:
        source = source or revision.proof.source
    has_counters = revision is not None and source == "counters" and revision.served.engines == 1
    send = partial(
        measure_answer,
        partial(runtime.ask, aws, name),
        partial(runtime.stream, aws, name),
        partial(runtime.counters, aws, name) if has_counters else lambda: None,
        request.body(plan is None or plan.proof.chat),
        on_text,
    )
    try:
        result, waited = _retry_until_awake(aws, name, send, wake_up or WakeUpOptions())
        return replace(result, waited_seconds=waited)
    except CloudError as error:
        if record and not error.command:
            error.fix = error.fix or "look at its state"
            error.command = ("peagle", "status", name)
        raise


def invoke_local(
    engine: LocalEngine, request: InvokeRequest, on_text: OnText = lambda text: None
) -> InvokeResult:
    """``invoke`` for an engine of ``peagle local up``. Raises EngineError instead of CloudError."""
    port = engine.process.port
    return measure_answer(
        partial(local.ask, port),
        partial(local.stream, port),
        partial(local.counters, port) if engine.speculates else lambda: None,
        request.body(engine.chat),
        on_text,
    )


def measure_answer(
    ask: Callable[[dict[str, Any]], dict[str, Any]],
    stream: Callable[[dict[str, Any]], Iterator[Piece]],
    counters: Callable[[], Counters | None],
    body: dict[str, Any],
    on_text: OnText,
) -> InvokeResult:
    """Send ``body`` and measure the answer; ``counters`` returns ``None`` if it can read none."""
    before = counters()
    started = time.monotonic()
    parts: list[str] = []
    tokens, first, thought = None, None, False
    streamed = bool(body.get("stream"))
    for piece in stream(body) if streamed else [parse_piece(ask(body))]:
        if piece.written and first is None and streamed:
            first = time.monotonic() - started
        answers = piece.text and not piece.reasoning and thought
        text = f"\n\n{piece.text}" if answers else piece.written
        thought = bool(piece.reasoning) or (thought and not piece.text)
        parts.append(text)
        tokens = piece.output_tokens if piece.output_tokens is not None else tokens
        on_text(text)
    seconds = time.monotonic() - started
    length, after = None, None
    with suppress(CloudError, EngineError):  # the server may have ended after the answer
        after = counters() if before else None
    if before and after and after.drafts >= before.drafts:  # else the engine restarted
        length = acceptance_length(after.since(before))
    return InvokeResult("".join(parts), tokens, seconds, first, length)
