"""Prove that an endpoint speculates, and record the result; ``peagle.proof`` decides what passes.

An image of this toolkit with one instance is proved from its counters. Any other endpoint is proved
from vLLM's lines of statistics in each instance's log stream, which stock vLLM writes too, every
10 s in which it generates; they reach CloudWatch with a delay.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

from peagle import proof
from peagle.aws import runtime, sagemaker
from peagle.aws.client import Aws, Clock
from peagle.aws.errors import AccessDenied, EngineRejected, Missing
from peagle.aws.runtime import LATE_MILLISECONDS, Tail
from peagle.aws.sagemaker import Endpoint, ResourceKind
from peagle.catalog.find import pair_name
from peagle.catalog.schema import Catalog, Drafter, Target
from peagle.checkpoints.entries import PROOF_PROMPTS
from peagle.deploy import records
from peagle.deploy.context import DeploymentContext
from peagle.deploy.discover import Live
from peagle.deploy.invoke import WakeUpOptions, wake
from peagle.deploy.revisions import (
    PREVIOUS_TAG,
    compares_now,
    fields_with_proof,
    of_variant,
    proof_tag,
    revision_in_service,
)
from peagle.deploy.state import Deployment, Revision, Served
from peagle.errors import Fix, NotFound, NotProved, Refused
from peagle.parallel import WORKERS, run_parallel
from peagle.planning.plan import FloorSource, Plan
from peagle.planning.runtime import proof_source
from peagle.planning.speculation import floor_of
from peagle.proof import MIN_DRAFTS, Conversations, Proof, StreamCounts, instance_of
from peagle.protocol import STAND_IN_TAG, Counters, log_group, parse_piece, request_body
from peagle.render.requests import VARIANT, tag_value
from peagle.vllm.defaults import caches_prefixes
from peagle.vllm.environment import settings_in

DEFAULT_PROMPTS = (*PROOF_PROMPTS[:2], PROOF_PROMPTS[3])
"""For an endpoint whose pair the catalogue does not have: three of those for a target without
prompts of its own, sent as chats."""

DEFAULT_MAX_TOKENS = 128


@dataclass(frozen=True)
class ProofRequest:
    """What to prove of the endpoint ``name``; the members are those of ``ProofPlan`` and ``Proof``.

    ``pair`` completes the commands of fixes; it is the part that the catalogue has. The floor does
    not apply to the sandbox's stand-in, whose acceptance says nothing about the pair, unless the
    user set it (``floor_source``).
    ``revision_started`` is when the revision in service was requested, in epoch seconds, where it
    is known: log streams that are older do not count. ``variant``: prove only that one.
    ``two_turns``: prefix caching is on, so the prompts are sent as conversations.
    """

    name: str
    prompts: tuple[str, ...]
    chat: bool
    max_tokens: int
    speculates: bool
    floor: float | None
    source: proof.Source
    pair: str = ""
    min_drafts: int = MIN_DRAFTS
    floor_source: FloorSource | None = None
    revision_started: float = 0.0
    variant: str | None = None
    two_turns: bool = False

    @property
    def target(self) -> dict[str, str]:
        """The parameters of an invocation of the variant."""
        return {"TargetVariant": self.variant} if self.variant else {}

    def body(self) -> dict[str, Any]:
        """The first prompt alone."""
        return request_body(self.prompts[0], chat=self.chat, max_tokens=self.max_tokens)

    def conversations(self, ask: Callable[[dict[str, Any]], Any]) -> Conversations:
        """The prompts for one engine, which ``ask`` sends to it."""
        settings: dict[str, Any] = {"chat": self.chat, "max_tokens": self.max_tokens}
        return Conversations(self.prompts, ask, **settings, two_turns=self.two_turns)


def request_of_plan(plan: Plan, name: str) -> ProofRequest:
    """The proof that ``plan`` asks for, of the endpoint ``name``."""
    settings, speculation = plan.proof, plan.speculation
    return ProofRequest(
        name=name,
        prompts=settings.prompts,
        chat=settings.chat,
        max_tokens=settings.max_tokens,
        speculates=speculation is not None,
        floor=speculation.acceptance_floor if speculation else None,
        source=settings.source,
        pair=proof.pair_in_catalogue(plan.target, plan.drafter),
        floor_source=speculation.acceptance_floor_source if speculation else None,
        two_turns=caches_prefixes(settings_in(plan.environment)),
    )


def request_of_served(served: Served, catalog: Catalog) -> ProofRequest:
    """The proof of an endpoint without a plan: with the catalogue's prompts and floor for its pair,
    else with default prompts and no floor."""
    target, drafter = find_pair_of_tag(served.pair, catalog)
    floor = floor_of(drafter, served.k) if drafter and served.k else None
    return replace(
        _request_of_target(target, served.name),
        speculates=served.k > 0,
        floor=floor,
        source=proof_source(served.image, catalog.runtimes),
        pair=proof.pair_in_catalogue(target, drafter) if served.pair else "",
        floor_source=None if floor is None else "catalogue",
        two_turns=caches_prefixes(served.settings),
    )


def request_of_model(model: str, name: str, catalog: Catalog) -> ProofRequest:
    """The proof of a server of which only the name of its model is known: with the prompts of the
    target of that name, else with default prompts. Any accepted draft passes."""
    return replace(_request_of_target(catalog.targets.get(model), name), pair=model)


def _request_of_target(target: Target | None, name: str) -> ProofRequest:
    settings = target.proof if target else None
    return ProofRequest(
        name=name,
        prompts=settings.prompts if settings else DEFAULT_PROMPTS,
        chat=settings.chat if settings else True,
        max_tokens=settings.max_tokens if settings else DEFAULT_MAX_TOKENS,
        speculates=True,
        floor=None,
        source="counters",
        two_turns=True,
    )


def find_pair_of_tag(tagged: str, catalog: Catalog) -> tuple[Target | None, Drafter | None]:
    """The target and drafter of a pair, as the value of a tag; a target alone where the drafter is
    the user's own."""
    for target_id, target in catalog.targets.items():
        value = tag_value(target_id)
        if tagged == value or tagged.startswith(f"{value}+"):
            names = {tag_value(pair_name(target, each)): each for each in target.drafters}
            return target, names.get(tagged)
    return None, None


STATISTICS_SECONDS = LATE_MILLISECONDS / 1000 + 15.0
"""How long after the last answer its statistics may reach CloudWatch: vLLM writes them every 10 s,
and log streams have delays."""

_SANDBOX_SECONDS = 4.0
_POLL_SECONDS, _SANDBOX_POLL_SECONDS = 2.0, 0.1
_CLOCK_SECONDS = 5.0


class StatisticsReader:
    """Counts the lines of statistics that the instances of ``live``, an endpoint, write from now
    on. Earlier instances do not count; ``revision_started`` is when the revision in service was
    requested, in epoch seconds, where it is known. ``repeat`` is the command to repeat where the
    log may not be read."""

    def __init__(
        self,
        aws: Aws,
        live: Endpoint,
        clock: Clock,
        revision_started: float = 0.0,
        repeat: tuple[str, ...] = (),
    ) -> None:
        self.counts = StreamCounts()
        self._aws, self._live, self._clock = aws, live, clock
        self._skew = _read_skew(aws, live.name, clock)
        self._tail = Tail(aws, live.name, clock.now() + self._skew, live.hosts_components)
        self._started = max(live.created, _created(aws, live), revision_started)
        self._known: set[str] = set()
        self._repeat = repeat

    def read(self) -> None:
        """Count what is new in the log. Raises AccessDenied, naming the action to allow."""
        try:
            events = list(self._tail.new())
            for stream in {event.stream for event in events} - self._known:
                self._known.add(stream)
                if not self._is_of_this_revision(stream):
                    self.counts.ignored.add(instance_of(stream))
        except AccessDenied as denied:
            group = log_group("*", self._live.hosts_components)
            policy = f"a policy that allows logs:FilterLogEvents on log-group:{group}"
            raise AccessDenied(
                f"the drafts are counted in the log of {self._live.name}: {denied.message}",
                Fix(f"ask for {policy}, then repeat the command", self._repeat),
                denied.code,
            ) from denied
        for event in events:
            self.counts.add(event.stream, event.raw, event.time)

    def wait(
        self,
        instances: int,
        is_complete: Callable[[], bool] = lambda: False,
        waiting: Callable[[], object] = lambda: None,
    ) -> None:
        """Read until so many instances have reported what they did until now, until
        ``is_complete``, or until nothing more is expected; ``waiting`` is called meanwhile."""
        seconds = STATISTICS_SECONDS if self._aws.is_amazon else _SANDBOX_SECONDS
        answered = self._clock.now()
        while True:
            self.read()
            waiting()
            if (
                is_complete()
                or self.counts.has_reported(answered + self._skew, instances)
                or self._clock.now() >= answered + seconds
            ):
                return
            self._clock.sleep(_POLL_SECONDS if self._aws.is_amazon else _SANDBOX_POLL_SECONDS)

    def _is_of_this_revision(self, stream: str) -> bool:
        """Whether the stream's instance started with this revision, and serves a variant of it."""
        variant = stream.partition("/")[0]
        if self._live.running and variant not in self._live.running:
            return False
        created = self._live.created
        if self._started <= created:
            return True
        copies = self._live.hosts_components
        return not runtime.has_logged_between(
            self._aws, self._live.name, stream, created, self._started, copies
        )


def _read_skew(aws: Aws, name: str, clock: Clock) -> float:
    """By how many seconds AWS's clock, which dates the lines of the log, is ahead of this
    machine's; a few are ignored. A machine that was asleep would miss the lines of its proof."""
    here = clock.now()
    endpoint = aws.call("sagemaker", "describe_endpoint", EndpointName=name)
    date = endpoint.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    skew = parsedate_to_datetime(date).timestamp() - here if date else 0.0
    return skew if abs(skew) > _CLOCK_SECONDS else 0.0


def _created(aws: Aws, live: Endpoint) -> float:
    """When the configuration, or the model of copies, was created, in epoch seconds: no engine of
    it is older. 0 where that may not be read, or it was deleted while it serves."""
    with suppress(AccessDenied, Missing):
        kind: ResourceKind = "Model" if live.hosts_components else "EndpointConfig"
        created = sagemaker.description(aws, kind, live.revision).get("CreationTime")
        return created.timestamp() if created else 0.0
    return 0.0


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
            look = Fix("look at it", ("peagle", "status", request.name))
            message = f"the endpoint {request.name} {status}: only one in service can be proved"
            raise Refused(message, look, "endpoint-not-in-service")
        if request.variant:
            live = of_variant(live, request.variant)
        if not request.speculates:
            return self._by_answer(request)
        is_stand_in = STAND_IN_TAG in (sagemaker.readable_tags(self.aws, live) or {})
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
            read = Fix("read the log", ("peagle", "logs", request.name))
            raise NotProved(f"{request.name} returned an empty answer", read, "empty-answer")
        return Proof(None, 0, (), None, passed=True)

    def _by_counters(self, request: ProofRequest, before: Counters, floor: float | None) -> Proof:
        until = self.clock.now() + PROOF_SECONDS
        latest = before

        def read() -> Counters:
            nonlocal latest
            latest = runtime.counters(self.aws, request.name, **request.target) or latest
            return latest

        counted = proof.count_drafts(
            before, request.conversations(partial(self._ask, request)), read, request.min_drafts,
            in_time=lambda: self.clock.now() <= until, say=self.say,
        )  # fmt: skip
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
            drafted = sum(counters.drafts for counters in counts.counted.values())
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
        targets: Sequence[str | None] = [None] * instances
        if live.component is None and len(live.running) > 1:
            counts = live.running.items()
            named = [variant for variant, count in counts for _ in range(count)]
            targets = named[:instances] or [None]

        def ask(variant: str | None, body: dict[str, Any]) -> dict[str, Any]:
            parameters = {"TargetVariant": variant} if variant else {}
            return self._ask(request, body, **parameters)

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


Say = Callable[[str], object]


def prove(
    aws: Aws,
    name: str,
    catalog: Catalog,
    record: Deployment | None = None,
    *,
    floor: float | None = None,
    min_drafts: int = MIN_DRAFTS,
    say: Say = lambda line: None,
    clock: Clock | None = None,
) -> Proof:
    """Prove that the endpoint ``name`` speculates, also one of a template or another machine.

    With a ``record`` of the revision in service, its plan says what to prove, and the proof is
    recorded if it is by the plan's own standard. Otherwise prompts and floor come from the
    catalogue, for the pair in the endpoint's tag. ``floor`` and ``min_drafts`` replace the pair's
    floor and the number of drafts of each instance. A proof that fails is returned too:
    ``require_passed`` raises for it. An endpoint that scaled to zero is woken first.

    Raises NotFound without such an endpoint, NotAwake for one that does not wake up, NotProved for
    a ``floor`` of one that does not speculate, and what ``Prover.prove`` raises.
    """
    live = sagemaker.describe(aws, name)
    if live is None:
        fix = Fix("list the deployments", ("peagle", "list"))
        raise NotFound(f"there is no endpoint {name!r} in {aws.region}", fix, "no-such-endpoint")
    wake_up = WakeUpOptions(on_progress=lambda progress: say(progress.text), clock=clock or Clock())
    if wake(aws, live, record, wake_up) is not None:
        live = sagemaker.describe(aws, name) or live
    served = revision_in_service(record, live.revision) if record else None
    request = _request(aws, live, served, catalog, floor)
    variant = VARIANT if record and compares_now(record, live) else None
    request = replace(request, min_drafts=min_drafts, variant=variant)
    proved = Prover(aws, clock or Clock(), say).prove(request)
    if record and served and floor is None and min_drafts >= MIN_DRAFTS:
        revision = served.model_copy(update={"proof": proved})
        _record(aws, record, live, revision, clock or Clock())
    return proved


def _request(
    aws: Aws, live: Endpoint, served: Revision | None, catalog: Catalog, floor: float | None
) -> ProofRequest:
    """What to prove of the endpoint that serves ``served``; raises NotProved for a ``floor`` of one
    that does not speculate."""
    if served and served.plan:
        request = request_of_plan(served.plan, live.name)
    else:
        request = request_of_served(Live(aws, live).served(), catalog)
    if floor is None:
        return request
    if not request.speculates:
        fix = "leave out --floor to prove only that it answers"
        raise NotProved(f"{live.name} does not speculate", fix, "no-speculation")
    return replace(request, floor=floor, floor_source="option")


def request_of_revision(revision: Revision, catalog: Catalog) -> ProofRequest:
    """The proof of a revision by its plan; ``catalog`` says what to prove of one without, which
    another machine deployed."""
    if revision.plan:
        return request_of_plan(revision.plan, revision.served.name)
    return request_of_served(revision.served, catalog)


def prove_request(context: DeploymentContext, request: ProofRequest, started: float = 0.0) -> Proof:
    """Prove ``request`` of the endpoint that the context works on; a proof that fails is returned
    too. ``started`` is when the update to what serves began, in epoch seconds.

    Raises what ``Prover.prove`` raises.
    """
    request = replace(request, name=context.record.name, revision_started=started)
    context.say("Proving", f"{len(request.prompts)} prompts")
    prover = Prover(
        context.aws, context.clock, lambda line: context.say("Proving", line, lasting=True)
    )
    return prover.prove(request)


def tag_proofs(
    aws: Aws, name: str, proved: Revision, previous: Revision | None, clock: Clock
) -> None:
    """Record the proof, and the previous revision with its own, as tags of the endpoint, for other
    machines; the record has them in any case."""
    live = sagemaker.describe(aws, name)
    if live is None or proved.proof is None:
        return
    now = clock.now()
    tags = [proof_tag(proved.proof, proved.fingerprint, now)]
    if previous:
        tags.append(proof_tag(previous.proof, previous.fingerprint, now, PREVIOUS_TAG))
    with suppress(AccessDenied):
        sagemaker.retag(aws, live.arn, tags)


def _record(aws: Aws, record: Deployment, live: Endpoint, revision: Revision, clock: Clock) -> None:
    """Write the proof of the revision in service to the tags and the record, unless another command
    has changed that meanwhile. A proof that passes ends an update that was kept
    unproved."""
    fields = fields_with_proof(record, revision)
    if "pending" not in fields or fields["pending"] is None:
        tag_proofs(aws, live.name, revision, fields.get("previous", record.previous), clock)
    with records.deployment_lock(record.scope, record.region, record.name):
        now = records.load_record(record.scope, record.region, record.name)
        in_service = revision_in_service(now, live.revision) if now else None
        if now and in_service and in_service.fingerprint == revision.fingerprint:
            records.save(now.model_copy(update=fields_with_proof(now, revision)))
