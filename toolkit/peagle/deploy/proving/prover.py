"""Prove that an endpoint speculates: send prompts until every instance has drafted enough.

An image of this toolkit with one instance is proved from its counters. Any other endpoint is proved
from vLLM's lines of statistics in each instance's log stream, which stock vLLM writes too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

from peagle import proof
from peagle.aws import runtime, sagemaker
from peagle.aws.client import Aws, Clock
from peagle.aws.errors import AccessDenied, EngineRejected, Missing
from peagle.aws.runtime import LATE_MILLISECONDS, Tail
from peagle.aws.sagemaker import Endpoint
from peagle.deploy.proving.request import ProofRequest
from peagle.deploy.status import sandbox_engine
from peagle.errors import Fix, NotProved, Refused
from peagle.parallel import WORKERS, run_parallel
from peagle.proof import Proof, StreamCounts, instance_of
from peagle.protocol import Counters, piece_of

PROOF_SECONDS = 15 * 60.0
"""After this time no further prompts are sent."""

STATISTICS_SECONDS = LATE_MILLISECONDS / 1000 + 15.0
"""How long after the last answer its statistics may reach CloudWatch: vLLM writes them every 10 s,
and log streams have delays."""

_SANDBOX_SECONDS = 4.0
_POLL_SECONDS, _SANDBOX_POLL_SECONDS = 2.0, 0.1
_ROUNDS_WITHOUT_PROGRESS = 2
_CLOCK_SECONDS = 5.0
_PROMPT_SECONDS = 600.0
"""Limit of one round of prompts."""


@dataclass(frozen=True)
class Prover:
    """Proves endpoints of one account; ``say`` receives the progress, one line at a time."""

    aws: Aws
    clock: Clock = field(default_factory=Clock)
    say: Callable[[str], object] = lambda line: None

    def prove(self, request: ProofRequest) -> Proof:
        """The proof. Without speculation, any non-empty answer passes.

        Raises Refused unless the endpoint is in service, NotProved when the engine refuses a
        prompt, EngineError when it does not answer, and CloudError, AccessDenied where the log
        decides and may not be read.
        """
        live = sagemaker.describe(self.aws, request.name)
        if live is None or live.status != "InService":
            status = f"is {live.status}" if live else "does not exist"
            raise Refused(
                f"the endpoint {request.name} {status}: only one in service can be proved",
                Fix("look at it", ("peagle", "status", request.name)),
                code="endpoint-not-in-service",
            )
        if not request.speculates:
            return self._by_answer(request)
        is_stand_in = sandbox_engine(self.aws, live).stand_in is not None
        floor = None if is_stand_in and not request.floor_is_set else request.floor
        if request.source == "counters" and live.instance_count <= 1:
            counters = runtime.counters(self.aws, request.name)
            if counters is not None:
                return self._by_counters(request, counters, floor)
        return self._by_log(request, live, floor)

    def _by_answer(self, request: ProofRequest) -> Proof:
        if not piece_of(self._ask(request, request.bodies()[0])).written:
            raise NotProved(
                f"{request.name} returned an empty answer",
                Fix("read the log", ("peagle", "logs", request.name)),
                code="empty-answer",
            )
        return Proof(None, 0, (), None, passed=True)

    def _by_counters(self, request: ProofRequest, before: Counters, floor: float | None) -> Proof:
        until = self.clock.now() + PROOF_SECONDS
        counted = Counters(0, 0, 0)
        while True:
            for body in request.bodies():
                self._ask(request, body)
            now = runtime.counters(self.aws, request.name) or before
            more = now.since(before)
            counted, before = counted + more, now
            self.say(f"{min(counted.drafts, request.min_drafts)} of {request.min_drafts} drafts")
            if counted.drafts >= request.min_drafts or not more.drafts:
                break
            if self.clock.now() > until:
                break
        return proof.evaluate(counted, floor, request.min_drafts)

    def _by_log(self, request: ProofRequest, live: Endpoint, floor: float | None) -> Proof:
        instances = max(live.instance_count, 1)
        reader = _LogReader(self.aws, request, live, self.clock.now(), self._skew(request.name))
        reader.read()  # what may not be read is reported before any prompt is sent
        until, idle, drafts = self.clock.now() + PROOF_SECONDS, 0, 0
        while True:
            self._send_round(request, live, instances)
            self._await_statistics(reader, request, instances)
            counts = reader.counts
            drafted = sum(one.drafts for one in counts.counted.values())
            idle, drafts = (0 if drafted > drafts else idle + 1), drafted
            if (
                _is_complete(counts, request, instances)
                or idle >= _ROUNDS_WITHOUT_PROGRESS
                or self.clock.now() > until
            ):
                break
        return proof.evaluate_streams(counts.counted, floor, request.min_drafts, instances)

    def _send_round(self, request: ProofRequest, live: Endpoint, instances: int) -> None:
        """Send all prompts once for each instance, to all at the same time.

        Each variant gets its share by name, also one whose weight is 0.
        """

        def send(variant: str | None) -> None:
            for body in request.bodies():
                self._ask(request, body, **({"TargetVariant": variant} if variant else {}))

        several = len(live.running) > 1
        targets = [
            variant if several else None
            for variant, count in live.running.items()
            for _ in range(count)
        ] or [None]
        if instances == 1:
            send(targets[0])
            return
        for first in range(0, len(targets), WORKERS):
            calls = [partial(send, variant) for variant in targets[first : first + WORKERS]]
            run_parallel(calls, time.monotonic() + _PROMPT_SECONDS)

    def _await_statistics(self, reader: _LogReader, request: ProofRequest, instances: int) -> None:
        """Read the log until the proof is complete, or nothing more is expected of this round."""
        seconds = STATISTICS_SECONDS if self.aws.is_amazon else _SANDBOX_SECONDS
        answered = self.clock.now()
        while True:
            reader.read()
            counts = reader.counts
            self.say(counts.progress(request.min_drafts, instances))
            if (
                _is_complete(counts, request, instances)
                or counts.has_reported(answered + reader.skew, instances)
                or self.clock.now() >= answered + seconds
            ):
                return
            self.clock.sleep(_POLL_SECONDS if self.aws.is_amazon else _SANDBOX_POLL_SECONDS)

    def _skew(self, name: str) -> float:
        """By how many seconds AWS's clock, which dates the lines of the log, is ahead of this
        machine's; a few are ignored."""
        here = self.clock.now()
        found = self.aws.call("sagemaker", "describe_endpoint", EndpointName=name)
        date = found.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        skew = parsedate_to_datetime(date).timestamp() - here if date else 0.0
        return skew if abs(skew) > _CLOCK_SECONDS else 0.0

    def _ask(
        self, request: ProofRequest, body: dict[str, Any], **parameters: str
    ) -> dict[str, Any]:
        try:
            return runtime.ask(self.aws, request.name, body, **parameters)
        except EngineRejected as error:
            raise NotProved(
                f"the engine rejected a proof prompt: {error.message}",
                "if the prompt exceeds the context, deploy with a larger --max-model-len",
                code="proof-prompt-rejected",
            ) from error


def _is_complete(counts: StreamCounts, request: ProofRequest, instances: int) -> bool:
    """Whether further prompts would change nothing: every instance has enough drafts, or one
    generates and never drafts."""
    enough = [one for one in counts.counted.values() if one.drafts >= request.min_drafts]
    return len(enough) >= instances or bool(counts.silent)


class _LogReader:
    """Counts the lines of statistics that the revision's instances write after ``since``, by this
    machine's clock; AWS's is ahead by ``skew`` seconds."""

    def __init__(
        self, aws: Aws, request: ProofRequest, live: Endpoint, since: float, skew: float
    ) -> None:
        self.skew = skew
        self.counts = StreamCounts()
        self._aws = aws
        self._live = live
        self._tail = Tail(aws, live.name, since + skew)
        self._started = max(live.created, _created(aws, live.config), request.revision_started)
        self._known: set[str] = set()

    def read(self) -> None:
        """Count what is new in the log. Raises AccessDenied, naming the action to allow."""
        try:
            events = list(self._tail.new())
            for stream in {event.stream for event in events} - self._known:
                self._known.add(stream)
                if not self._is_of_this_revision(stream):
                    self.counts.ignored.add(instance_of(stream))
        except AccessDenied as denied:
            raise AccessDenied(
                f"the proof reads the log of {self._live.name}: {denied.message}",
                Fix(
                    "ask for a policy that allows logs:FilterLogEvents on log-group:"
                    "/aws/sagemaker/Endpoints/*, then repeat the proof",
                    ("peagle", "prove", self._live.name),
                ),
                denied.code,
            ) from denied
        for event in events:
            self.counts.add(event.stream, event.raw, event.time)

    def _is_of_this_revision(self, stream: str) -> bool:
        """Whether the stream's instance started with this revision, and serves a variant of it."""
        variant = stream.partition("/")[0]
        if self._live.running and variant not in self._live.running:
            return False
        created = self._live.created
        if self._started <= created:
            return True
        return not runtime.has_logged_between(
            self._aws, self._live.name, stream, created, self._started
        )


def _created(aws: Aws, config: str) -> float:
    """When the configuration was created, in epoch seconds: no instance of it is older. 0 where
    that may not be read, or it was deleted while it serves."""
    try:
        found = sagemaker.description(aws, "EndpointConfig", config)
    except (AccessDenied, Missing):
        return 0.0
    created = found.get("CreationTime")
    return created.timestamp() if created else 0.0
