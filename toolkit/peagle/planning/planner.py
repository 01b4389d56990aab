"""Options and catalogue become a Plan.

Every step is a function that returns a Decision: a value, its reasons, and findings. No step uses
the network, the clock or the disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from peagle.catalog.schema import Catalog
from peagle.catalog.tables import Runtime
from peagle.findings import Finding
from peagle.planning.candidates import Candidate, CandidateEvaluator, price_of
from peagle.planning.drafter import SelectedPair, choose_drafter
from peagle.planning.engine_settings import (
    Workload,
    drafter_bytes,
    engine_arguments,
    engine_environment,
)
from peagle.planning.limits import (
    choose_concurrency,
    choose_download_timeout,
    choose_length,
    choose_startup_timeout,
)
from peagle.planning.plan import (
    Alternative,
    Decision,
    DrafterChoice,
    Options,
    Plan,
    ProofPlan,
    Reason,
    RuntimeChoice,
    SpeedEstimate,
    TargetChoice,
)
from peagle.planning.ranking import Ranked, alternative, choose_count, choose_instance
from peagle.planning.rules import check_plan
from peagle.planning.runtime import (
    choose_ami,
    choose_image,
    choose_name,
    choose_region,
    choose_runtime,
)
from peagle.planning.speculation import (
    SpeculationChoice,
    check_k,
    choose_k,
    drafter_request,
    speculation_findings,
    speculation_of,
    without_speculation,
)
from peagle.planning.weights import PlacedWeights, Streaming, place_weights, stream
from peagle.protocol import digest_in
from peagle.vllm.environment import check_environment, to_environment
from peagle_serve.contract import IMAGE_DIGEST_VARIABLE

T = TypeVar("T")

_SEVERITY = {"error": 0, "warning": 1, "note": 2}


def make_plan(options: Options, catalog: Catalog) -> Plan:
    """The plan for these options: the same options and catalogue give the same plan.

    Raises UserError and NotFound for impossible options. Problems of a possible plan are findings;
    a plan with an error among them cannot be applied.
    """
    decisions = _Decisions()
    decided = _make_decisions(options, catalog, decisions)
    engine = _engine(decided, decisions)
    server = _server(decided, decisions)
    return Plan(
        name=decided.name,
        pair=decided.pair.name,
        **engine,
        **server,
        findings=decisions.findings,
        reasons=decisions.reasons,
    )


class _Decisions:
    """Collects what the decisions have to say, in their order."""

    def __init__(self) -> None:
        self._reasons: list[Reason] = []
        self._findings: list[Finding] = []

    def record(self, choice: Decision[T]) -> T:
        self._reasons += choice.reasons
        self._findings += choice.findings
        return choice.value

    @property
    def reasons(self) -> tuple[Reason, ...]:
        return tuple(self._reasons)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Errors first, otherwise in order, without duplicates."""
        found = dict.fromkeys(self._findings)
        return tuple(sorted(found, key=lambda finding: _SEVERITY[finding.level]))


@dataclass(frozen=True)
class _Decided:
    """All decisions, before they are expressed for vLLM and SageMaker."""

    options: Options
    catalog: Catalog
    pair: SelectedPair
    name: str
    region: str
    runtime: Runtime
    image: str
    work: Workload
    candidate: Candidate
    alternatives: tuple[Alternative, ...]
    ami: str | None
    count: int
    placed: PlacedWeights


def _make_decisions(options: Options, catalog: Catalog, decisions: _Decisions) -> _Decided:
    check_k(options)
    request = choose_drafter(options, catalog)
    ranked = _ranked(options, catalog, request.value)
    candidate = ranked.value.candidate
    pair = _apply_evidence(options, request, candidate.speculation, decisions)
    target, drafter = pair.target, pair.drafter
    name = decisions.record(choose_name(options, pair))
    region = decisions.record(choose_region(options, catalog.runtimes))
    runtime = decisions.record(choose_runtime(options, catalog, target, drafter))
    image = decisions.record(choose_image(options, catalog, runtime, region, pair))
    length = decisions.record(choose_length(options, target))
    concurrency = decisions.record(choose_concurrency(options, drafter))
    k = candidate.speculation.k
    work = Workload(target, drafter, k, runtime.vllm, length, concurrency, catalog)
    best = tuple(alternative(options, other) for other in decisions.record(ranked).best)
    ami = decisions.record(choose_ami(catalog.runtimes, runtime, candidate.instance.type))
    count = decisions.record(choose_count(options, candidate))
    placed = decisions.record(place_weights(options, catalog, pair, name))
    return _Decided(
        options,
        catalog,
        pair,
        name,
        region,
        runtime,
        image,
        work,
        candidate,
        best,
        ami,
        count,
        placed,
    )


def _ranked(options: Options, catalog: Catalog, pair: SelectedPair) -> Decision[Ranked]:
    """The best instances. Reasons and findings of the other decisions are recorded later, when the
    drafter is final."""
    target, drafter = pair.target, pair.drafter
    request = drafter_request(options, pair)
    region = choose_region(options, catalog.runtimes).value
    vllm = choose_runtime(options, catalog, target, drafter).value.vllm
    length = choose_length(options, target).value
    concurrency = choose_concurrency(options, drafter).value
    work = Workload(target, drafter, request.usual_k, vllm, length, concurrency, catalog)
    runs = catalog.speeds.get(target.id, ())
    evaluator = CandidateEvaluator(options, catalog.instances, runs, request, work, region)
    return choose_instance(catalog.instances, evaluator)


def _apply_evidence(
    options: Options,
    request: Decision[SelectedPair],
    speculation: SpeculationChoice,
    decisions: _Decisions,
) -> SelectedPair:
    """The pair to plan: the requested one, unless evidence shows that its drafter is slower."""
    if speculation.drafter is None and request.value.drafter is not None:
        return decisions.record(without_speculation(request.value, speculation))
    pair = decisions.record(request)
    if pair.drafter is not None:
        decisions.record(choose_k(options, pair.drafter, pair.own is not None, speculation))
        decisions.record(Decision(None, findings=speculation_findings(pair, speculation)))
    return pair


def _engine(decided: _Decided, decisions: _Decisions) -> dict[str, Any]:
    """The plan's fields about models and vLLM."""
    pair, work, placed, target = decided.pair, decided.work, decided.placed, decided.pair.target
    speculation = speculation_of(pair.drafter, work.k) if pair.drafter else None
    arguments = decisions.record(
        engine_arguments(
            served_as=target.id,
            placed=placed,
            max_model_len=work.max_model_len,
            concurrency=work.concurrency,
            tensor_parallel_size=decided.candidate.hosting.fit.tensor_parallel_size,
            settings=decided.candidate.hosting.settings,
            speculation=speculation,
        )
    )
    architecture = decided.candidate.hosting.instance.gpu_architecture
    extra = decisions.record(engine_environment(target, architecture, decided.runtime.vllm))
    streamed = decisions.record(_streamed(decided))
    environment = to_environment(arguments) | extra | streamed | _image_digest(decided.image)
    check_environment(environment)
    rules = check_plan(
        decided.options,
        decided.catalog,
        pair=pair,
        work=work,
        hosting=decided.candidate.hosting,
        runtime=decided.runtime,
        region=decided.region,
        image=decided.image,
        ami=decided.ami,
        environment=environment,
    )
    decisions.record(Decision(None, findings=rules))
    return {
        "target": TargetChoice(
            id=target.id,
            licence=target.licence,
            weight_bytes=target.weight_bytes,
            weights=placed.target,
        ),
        "drafter": _drafter_choice(pair, placed),
        "speculation": speculation,
        "max_model_len": work.max_model_len,
        "concurrency": work.concurrency,
        "engine_arguments": arguments,
        "environment": dict(sorted(environment.items())),
        "mounts": placed.mounts,
        "proof": ProofPlan(**target.proof.model_dump()),
    }


def _streamed(decided: _Decided) -> Decision[dict[str, str]]:
    """The environment for streamed weights; empty for others."""
    hosting, placed = decided.candidate.hosting, decided.placed
    gpus, table = hosting.fit.tensor_parallel_size, decided.catalog.runtimes
    sizes = {placed.target: decided.pair.target.weight_bytes}
    if placed.drafter is not None:
        sizes[placed.drafter] = drafter_bytes(decided.work)
    where = Streaming(decided.runtime, table, hosting.instance, gpus, decided.region)
    return stream(sizes, where)


def _image_digest(image: str) -> dict[str, str]:
    """The image's digest, where it is named with it: a container cannot know its own, and what it
    compiled is of use to that very image only (``peagle warm``)."""
    digest = digest_in(image)
    return {IMAGE_DIGEST_VARIABLE: digest} if digest else {}


def _server(decided: _Decided, decisions: _Decisions) -> dict[str, Any]:
    """The plan's fields about SageMaker and prices."""
    runtime, instance, placed = decided.runtime, decided.candidate.hosting.instance, decided.placed
    candidate = decided.candidate
    sizes = (decided.pair.target.weight_bytes, drafter_bytes(decided.work))
    gpus = candidate.hosting.fit.tensor_parallel_size
    price = decisions.record(price_of(instance, decided.region))
    return {
        "region": decided.region,
        "runtime": RuntimeChoice(
            vllm=runtime.vllm, image=decided.image, cuda=runtime.cuda, ami=decided.ami
        ),
        "instance_type": instance.type,
        "instance_count": decided.count,
        "download_timeout_seconds": decisions.record(choose_download_timeout(placed, *sizes)),
        "startup_timeout_seconds": decisions.record(choose_startup_timeout(placed, *sizes, gpus)),
        "fit": decided.candidate.hosting.fit,
        "price_per_hour_usd": candidate.usd_per_hour,
        "price_date": price.date.isoformat() if price else None,
        "speed": _speed(candidate),
        "alternatives": decided.alternatives,
    }


def _drafter_choice(pair: SelectedPair, placed: PlacedWeights) -> DrafterChoice | None:
    if pair.drafter is None:
        return None
    _, _, identity = pair.name.partition("+")
    return DrafterChoice(
        name=pair.drafter.name,
        id=identity,
        licence=pair.drafter.licence,
        weights=placed.drafter,
    )


def _speed(candidate: Candidate) -> SpeedEstimate | None:
    """The speed of the selected candidate, if known."""
    speed, source, compared = (
        candidate.speculation.speed,
        candidate.source,
        candidate.speculation.compared,
    )
    if speed is None or source is None or candidate.tokens_per_second is None:
        return None
    alone = compared.alone if compared else None
    share = candidate.tokens_per_second / speed.tokens_per_second
    return SpeedEstimate(
        tokens_per_second=candidate.tokens_per_second,
        alone_tokens_per_second=round(alone.tokens_per_second * share, 1) if alone else None,
        usd_per_million_tokens=candidate.usd_per_million_tokens,
        acceptance_length=speed.acceptance_length,
        source=source,
        file=speed.run.file,
        vllm=speed.run.vllm,
        synthetic=speed.run.synthetic and speed.k > 0,
        interpolated=speed.between is not None,
    )
