"""Prove that an endpoint speculates: send prompts until every instance has drafted enough.

An image of this toolkit with one instance is proved from its counters. Any other endpoint is proved
from vLLM's lines of statistics in each instance's log stream, which stock vLLM writes too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from peagle import proof
from peagle.aws import runtime, sagemaker
from peagle.aws.client import Aws, Clock
from peagle.aws.errors import EngineRejected
from peagle.aws.sagemaker import Endpoint
from peagle.deploy.proving.request import ProofRequest
from peagle.deploy.proving.statistics import StatisticsReader
from peagle.deploy.status import sandbox_engine
from peagle.deploy.variants import of_variant
from peagle.errors import Fix, NotProved, Refused
from peagle.parallel import WORKERS, run_parallel
from peagle.proof import Proof, StreamCounts
from peagle.protocol import Counters, parse_piece

PROOF_SECONDS = 15 * 60.0
"""After this time no further prompts are sent."""

_ROUNDS_WITHOUT_PROGRESS = 2
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
        if request.variant:
            live = of_variant(live, request.variant)
        if not request.speculates:
            return self._by_answer(request)
        is_stand_in = sandbox_engine(self.aws, live).stand_in is not None
        floor = None if is_stand_in and request.floor_source != "option" else request.floor
        source = None if floor is None else request.floor_source
        return replace(self._counted(request, live, floor), floor_source=source)

    def _counted(self, request: ProofRequest, live: Endpoint, floor: float | None) -> Proof:
        """The proof from the engine's counters, else from the log."""
        if request.source == "counters" and live.engine_count <= 1:
            counters = runtime.counters(self.aws, request.name, **request.target)
            if counters is not None:
                return self._by_counters(request, counters, floor)
        return self._by_log(request, live, floor)

    def _by_answer(self, request: ProofRequest) -> Proof:
        if not parse_piece(self._ask(request, request.body())).written:
            raise NotProved(
                f"{request.name} returned an empty answer",
                Fix("read the log", ("peagle", "logs", request.name)),
                code="empty-answer",
            )
        return Proof(None, 0, (), None, passed=True)

    def _by_counters(self, request: ProofRequest, before: Counters, floor: float | None) -> Proof:
        until = self.clock.now() + PROOF_SECONDS
        latest = before

        def read() -> Counters:
            nonlocal latest
            latest = runtime.counters(self.aws, request.name, **request.target) or latest
            return latest

        counted = proof.count_drafts(
            before,
            request.conversations(partial(self._ask, request)),
            read,
            request.min_drafts,
            in_time=lambda: self.clock.now() <= until,
            say=self.say,
        )
        return proof.evaluate(counted.total, floor, request.min_drafts, counted.second)

    def _by_log(self, request: ProofRequest, live: Endpoint, floor: float | None) -> Proof:
        instances = max(live.engine_count, 1)
        again = ("peagle", "prove", live.name)
        reader = StatisticsReader(self.aws, live, self.clock, request.revision_started, again)
        reader.read()  # what may not be read is reported before any prompt is sent
        counts = reader.counts
        counts.conversations = request.two_turns
        turns = self._turns(request, live, instances)
        until, idle, drafts, rounds = self.clock.now() + PROOF_SECONDS, 0, 0, 0
        while True:
            rounds += 1
            for number, send in enumerate(turns, start=1):
                counts.in_second_turn = number > 1
                send()
                # A first turn is counted to its end, so that its statistics are not the second's.
                is_last = number == len(turns)
                done = partial(_is_complete, counts, request, instances, rounds)
                reader.wait(
                    instances,
                    done if is_last else lambda: bool(counts.silent),
                    lambda: self.say(counts.progress(request.min_drafts, instances)),
                )
            drafted = sum(one.drafts for one in counts.counted.values())
            idle, drafts = (0 if drafted > drafts else idle + 1), drafted
            if (
                _is_complete(counts, request, instances, rounds)
                or idle >= _ROUNDS_WITHOUT_PROGRESS
                or self.clock.now() > until
            ):
                break
        return proof.evaluate_streams(
            counts.counted, floor, request.min_drafts, instances, counts.second
        )

    def _turns(
        self, request: ProofRequest, live: Endpoint, instances: int
    ) -> list[Callable[[], None]]:
        """What sends the turns of a round: all prompts once for each instance, to all at the same
        time. Each variant gets its share by name, also one whose weight is 0.
        """
        several = len(live.running) > 1
        targets = [
            variant if several else None
            for variant, count in live.running.items()
            for _ in range(count)
        ] or [None]
        if live.component is not None:
            targets = [None] * instances
        if instances == 1:
            targets = targets[:1]

        def ask(variant: str | None, body: dict[str, Any]) -> dict[str, Any]:
            named = {"TargetVariant": variant} if variant else {}
            return self._ask(request, body, **named)

        turns = [request.conversations(partial(ask, variant)).turns for variant in targets]
        return [partial(_send, calls) for calls in zip(*turns, strict=True)]

    def _ask(
        self, request: ProofRequest, body: dict[str, Any], **parameters: str
    ) -> dict[str, Any]:
        try:
            return runtime.ask(self.aws, request.name, body, **{**request.target, **parameters})
        except EngineRejected as error:
            raise proof.prompt_rejected(error.message) from error


def _send(calls: Sequence[Callable[[], None]]) -> None:
    if len(calls) == 1:
        calls[0]()
        return
    for first in range(0, len(calls), WORKERS):
        run_parallel(calls[first : first + WORKERS], time.monotonic() + _PROMPT_SECONDS)


def _is_complete(counts: StreamCounts, request: ProofRequest, instances: int, rounds: int) -> bool:
    """Whether further prompts would change nothing: every instance has enough drafts, or one
    generates and never drafts."""
    enough = counts.with_enough(request.min_drafts, rounds)
    return len(enough) >= instances or bool(counts.silent)
