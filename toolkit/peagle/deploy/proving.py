"""Prove that an endpoint speculates, and record the result; ``peagle.proof`` decides what passes.

An image of this toolkit with one instance is proved from its counters. Any other endpoint is proved
from vLLM's lines of statistics in each instance's log stream, which stock vLLM writes too, every
10 s in which it generates; they reach CloudWatch with a delay.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import chain
from typing import Any

from peagle import proof
from peagle.aws import runtime, sagemaker
from peagle.aws.client import Aws, Clock
from peagle.aws.errors import AccessDenied, EngineRejected
from peagle.aws.runtime import LATE_MILLISECONDS, Tail
from peagle.aws.sagemaker import Endpoint
from peagle.catalog.find import pair_name
from peagle.catalog.schema import Catalog, Drafter, ProofPrompts, Target
from peagle.checkpoints.entries import PROOF_PROMPTS
from peagle.deploy import records, revisions
from peagle.deploy.context import DeploymentContext
from peagle.deploy.discover import Live
from peagle.deploy.invoke import WakeUpOptions, wake
from peagle.deploy.state import Deployment, Revision, Served
from peagle.errors import Fix, NotFound, NotProved, OutOfRange, Refused
from peagle.planning.plan import FloorSource, Plan
from peagle.planning.runtime import proof_source
from peagle.planning.speculation import choose_floor
from peagle.proof import MIN_DRAFTS, Proof, StreamCounts, Turns, build_turns
from peagle.protocol import STAND_IN_TAG, Counters, parse_piece, request_body
from peagle.render.requests import VARIANT, tag_value
from peagle.vllm.defaults import caches_prefixes
from peagle.vllm.environment import settings_in

DEFAULT_PROOF = ProofPrompts(prompts=(*PROOF_PROMPTS[:2], PROOF_PROMPTS[3]), max_tokens=128)
"""For an endpoint whose pair the catalogue does not have: three of those for a target without
prompts of its own, sent as chats."""

_STATISTICS_SECONDS = LATE_MILLISECONDS / 1000 + 15.0
"""How long after the last answer its statistics may reach CloudWatch: vLLM writes them every 10 s,
and log streams have delays."""

_SANDBOX_SECONDS = 4.0
_POLL_SECONDS, _SANDBOX_POLL_SECONDS = 2.0, 0.1
_CLOCK_SECONDS = 5.0

PROOF_SECONDS = 15 * 60.0
"""After this time no further prompts are sent."""

_ROUNDS_WITHOUT_PROGRESS = 2

Say = Callable[[str], object]


@dataclass(frozen=True)
class ProofRequest:
    """What to prove of the endpoint ``name``. ``pair`` completes the commands of fixes. The floor
    does not apply to the sandbox's stand-in, unless the user set it. Log streams older than
    ``revision_started``, in epoch seconds, do not count. ``two_turns``: prefix caching is on."""

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

    def body(self) -> dict[str, Any]:
        """The first prompt alone."""
        return request_body(self.prompts[0], chat=self.chat, max_tokens=self.max_tokens)

    def turns(self, ask: Callable[[dict[str, Any]], Any]) -> Turns:
        """The prompts for one engine, which ``ask`` sends to it."""
        return build_turns(self.prompts, ask, self.chat, self.max_tokens, self.two_turns)


def make_plan_request(plan: Plan, name: str) -> ProofRequest:
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


def make_served_request(served: Served, catalog: Catalog) -> ProofRequest:
    """The proof of an endpoint without a plan: with the catalogue's prompts and floor for its
    pair."""
    target, drafter = find_pair_of_tag(served.pair, catalog)
    floor = choose_floor(drafter, served.k) if drafter and served.k else None
    return replace(
        _make_target_request(target, served.name),
        speculates=served.k > 0,
        floor=floor,
        source=proof_source(served.image, catalog.runtimes),
        pair=proof.pair_in_catalogue(target, drafter) if served.pair else "",
        floor_source=None if floor is None else "catalogue",
        two_turns=caches_prefixes(served.settings),
    )


def make_revision_request(revision: Revision, catalog: Catalog) -> ProofRequest:
    """The proof of a revision by its plan, else by ``catalog``."""
    if revision.plan:
        return make_plan_request(revision.plan, revision.served.name)
    return make_served_request(revision.served, catalog)


def make_model_request(model: str, name: str, catalog: Catalog) -> ProofRequest:
    """The proof of a server by the name of its model alone: any accepted draft passes."""
    return replace(_make_target_request(catalog.targets.get(model), name), pair=model)


def _make_target_request(target: Target | None, name: str) -> ProofRequest:
    settings = (target and target.proof) or DEFAULT_PROOF
    return ProofRequest(
        name=name,
        prompts=settings.prompts,
        chat=settings.chat,
        max_tokens=settings.max_tokens,
        speculates=True,
        floor=None,
        source="counters",
        two_turns=True,
    )


def find_pair_of_tag(tagged: str, catalog: Catalog) -> tuple[Target | None, Drafter | None]:
    """The target and drafter of a tag's value; a target alone with a drafter of the user."""
    for target_id, target in catalog.targets.items():
        value = tag_value(target_id)
        if tagged == value or tagged.startswith(f"{value}+"):
            names = {tag_value(pair_name(target, each)): each for each in target.drafters}
            return target, names.get(tagged)
    return None, None


class StatisticsReader:
    """Counts the lines of statistics that the instances of ``live`` write from now on, in the log
    streams that begin with ``prefix``. Those of earlier instances, and before ``revision_started``
    (epoch seconds), do not count."""

    def __init__(
        self,
        aws: Aws,
        live: Endpoint,
        clock: Clock,
        revision_started: float = 0.0,
        prefix: str = "",
    ) -> None:
        self.counts = StreamCounts()
        self._aws, self._clock = aws, clock
        # AWS's clock dates the lines; a machine that was asleep would miss those of its proof.
        now = clock.now()
        endpoint = aws.call("sagemaker", "describe_endpoint", EndpointName=live.name)
        date = endpoint.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        skew = parsedate_to_datetime(date).timestamp() - now if date else 0.0
        self._skew = skew if abs(skew) > _CLOCK_SECONDS else 0.0
        earlier = live.created, max(live.created, revision_started)
        since = now + self._skew
        self._tail = Tail(
            aws, live.name, since, live.hosts_components, prefix=prefix, earlier=earlier
        )

    def read(self) -> None:
        """Count what is new in the log. Raises AccessDenied."""
        for event in self._tail.new():
            self.counts.add(event.stream, event.raw, event.time)

    def wait(
        self,
        instances: int,
        is_complete: Callable[[], bool] = lambda: False,
        waiting: Callable[[], object] = lambda: None,
    ) -> None:
        """Read until so many instances have reported what they did until now, until
        ``is_complete``, or until nothing more is expected; ``waiting`` is called meanwhile."""
        seconds = _STATISTICS_SECONDS if self._aws.is_amazon else _SANDBOX_SECONDS
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


def _prove(aws: Aws, request: ProofRequest, clock: Clock, say: Say) -> Proof:
    """The proof. Without speculation, any non-empty answer passes. Raises Refused unless the
    endpoint is in service, NotProved, EngineError and CloudError."""
    name = request.name
    live = sagemaker.describe(aws, name)
    if live is None or live.status != "InService":
        status = f"is {live.status}" if live else "does not exist"
        message = f"the endpoint {name} {status}: only one in service can be proved"
        look = Fix("look at it", ("peagle", "status", name))
        raise Refused(message, look, "endpoint-not-in-service")
    if request.variant:
        live = revisions.of_variant(live, request.variant)
    target = {"TargetVariant": request.variant} if request.variant else {}

    def ask(body: dict[str, Any], **parameters: str) -> dict[str, Any]:
        try:
            return runtime.ask(aws, name, body, **{**target, **parameters})
        except EngineRejected as error:
            raise proof.prompt_rejected(error.message) from error

    if not request.speculates:
        if not parse_piece(ask(request.body())).written:
            read = Fix("read the log", ("peagle", "logs", name))
            raise NotProved(f"{name} returned an empty answer", read, "empty-answer")
        return Proof(None, 0, (), None, passed=True)
    is_stand_in = STAND_IN_TAG in (sagemaker.readable_tags(aws, live) or {})
    if is_stand_in and request.floor_source != "option":
        request = replace(request, floor=None)
    source = None if request.floor is None else request.floor_source
    before = None
    if request.source == "counters" and live.engine_count <= 1:
        before = runtime.counters(aws, name, **target)
    if before is None:
        return replace(_prove_by_log(aws, request, live, clock, ask, say), floor_source=source)
    until, latest = clock.now() + PROOF_SECONDS, before

    def read_counters() -> Counters:
        nonlocal latest
        latest = runtime.counters(aws, name, **target) or latest
        return latest

    counted = proof.count_drafts(
        before, request.turns(ask), read_counters, request.min_drafts,
        in_time=lambda: clock.now() <= until, say=say,
    )  # fmt: skip
    proved = proof.evaluate({None: counted}, request.floor, request.min_drafts)
    return replace(proved, floor_source=source)


def _prove_by_log(
    aws: Aws,
    request: ProofRequest,
    live: Endpoint,
    clock: Clock,
    ask: Callable[..., dict[str, Any]],
    say: Say,
) -> Proof:
    """In each round every prompt is sent once per instance, up to 10 requests at a time, until
    every instance has enough drafts, or one generates and never drafts."""
    instances, least = max(live.engine_count, 1), request.min_drafts
    prefix = f"{request.variant}/" if request.variant else ""
    reader = StatisticsReader(aws, live, clock, request.revision_started, prefix)
    reader.read()  # what may not be read is reported before any prompt is sent
    counts = reader.counts
    counts.conversations = request.two_turns
    # Each variant gets its share by name, also one whose weight is 0.
    targets: list[dict[str, str]] = [{}] * instances
    if live.component is None and len(live.running) > 1:
        named = [variant for variant, count in live.running.items() for _ in range(count)]
        targets = [{"TargetVariant": variant} for variant in named[:instances]] or [{}]
    by_target = [request.turns(partial(ask, **to)) for to in targets]
    turns = [list(chain(*calls)) for calls in zip(*by_target, strict=True)]
    until, idle, drafts, rounds = clock.now() + PROOF_SECONDS, 0, 0, 0

    def is_complete() -> bool:
        """Whether further prompts would change nothing."""
        enough = sum(each.is_enough(least, rounds) for each in counts.instances.values())
        return enough >= instances or bool(counts.silent)

    while True:
        rounds += 1
        for number, calls in enumerate(turns, start=1):
            counts.in_second_turn = number > 1
            proof.send_turn(calls)
            # A first turn is counted to its end, so that its statistics are not the second's.
            is_last = number == len(turns)
            reader.wait(
                instances,
                is_complete if is_last else lambda: bool(counts.silent),
                lambda: say(counts.progress(least, instances)),
            )
        drafted = sum(counters.drafts for counters in counts.counted.values())
        idle, drafts = (0 if drafted > drafts else idle + 1), drafted
        if is_complete() or idle >= _ROUNDS_WITHOUT_PROGRESS or clock.now() > until:
            break
    return proof.evaluate(counts.instances, request.floor, least, instances, "log")


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
) -> tuple[Proof, Revision | None]:
    """Prove that the endpoint ``name`` speculates; one that scaled to zero is woken first. With a
    ``record``, the plan in service says what to prove, else the catalogue does, for the pair in the
    endpoint's tag. Returns the proof, also one that fails, and the revision in service with it for
    ``record_proof``, if it is by the standard of that revision. Raises NotFound, Refused, NotAwake,
    NotProved for a ``floor`` without speculation, and OutOfRange for one above K + 1."""
    clock = clock or Clock()
    live = sagemaker.describe(aws, name)
    if live is None:
        fix = Fix("list the deployments", ("peagle", "list"))
        raise NotFound(f"there is no endpoint {name!r} in {aws.region}", fix, "no-such-endpoint")
    if wake(aws, live, record, WakeUpOptions(on_progress=say, clock=clock)) is not None:
        live = sagemaker.describe(aws, name) or live
    served = revisions.revision_in_service(record, live.revision) if record else None
    serves = served.served if served else Live(aws, live).served()
    if served and served.plan:
        request = make_plan_request(served.plan, name)
    else:
        request = make_served_request(serves, catalog)
    if floor is not None:
        if not request.speculates:
            raise NotProved(f"{name} does not speculate", "leave out --floor", "no-speculation")
        if floor > serves.k + 1:
            raise OutOfRange(f"with K={serves.k}, --floor is {serves.k + 1} at most", "lower it")
        request = replace(request, floor=floor, floor_source="option")
    variant = VARIANT if record and revisions.compares_now(record, live) else None
    proved = _prove(aws, replace(request, min_drafts=min_drafts, variant=variant), clock, say)
    if served is None or floor is not None or min_drafts < MIN_DRAFTS:
        return proved, None
    return proved, served.model_copy(update={"proof": proved})


def prove_request(context: DeploymentContext, request: ProofRequest, started: float = 0.0) -> Proof:
    """Prove ``request`` of the endpoint that the context works on; ``started`` is when the update
    to what serves began, in epoch seconds. A proof that fails is returned too."""
    request = replace(request, name=context.record.name, revision_started=started)
    context.say("Proving", f"{len(request.prompts)} prompts")
    say = partial(context.say, "Proving", lasting=True)
    return _prove(context.aws, request, context.clock, say)


def tag_proofs(context: DeploymentContext, proved: Revision, previous: Revision | None) -> None:
    """Record the proof, and the previous revision with its own, as tags for other machines."""
    live = sagemaker.describe(context.aws, context.record.name)
    if live is None or proved.proof is None:
        return
    now = context.clock.now()
    tags = [revisions.proof_tag(proved.proof, proved.fingerprint, now)]
    if previous:
        tags.append(
            revisions.proof_tag(previous.proof, previous.fingerprint, now, revisions.PREVIOUS_TAG)
        )
    with suppress(AccessDenied):
        sagemaker.retag(context.aws, live.arn, tags)


def record_proof(context: DeploymentContext, revision: Revision) -> None:
    """Write the proof of the revision in service to the tags and the record, unless another command
    has changed what serves meanwhile. A proof that passes ends an update that was kept unproved. A
    deployment of another machine gets no record here."""
    record = context.record
    kept = (record.serving, record.pending)
    if all(each is None or each.fingerprint != revision.fingerprint for each in kept):
        return
    fields = revisions.fields_with_proof(record, revision)
    if fields.get("pending") is None:
        tag_proofs(context, revision, fields.get("previous", record.previous))
    if records.load_record(*record.key):
        context.change(**fields)
