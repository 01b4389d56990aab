"""Options and catalogue become a Plan.

Every step is a function that returns a Decision: a value, its reasons, and findings. No step uses
the network, the clock or the disk.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from peagle.case import CaseOptions, Checkpoints, build_case
from peagle.catalog.schema import Catalog, Target
from peagle.catalog.tables import Instance, Price
from peagle.checks import check
from peagle.findings import Finding, severity
from peagle.planning.break_even import with_break_even
from peagle.planning.candidates import Candidate, PairLoad, price_of
from peagle.planning.drafter import SelectedPair, choose_drafter
from peagle.planning.evaluation import CandidateEvaluator
from peagle.planning.load import (
    choose_concurrency,
    choose_length,
    choose_load,
    choose_workload,
)
from peagle.planning.overrides import (
    check_overrides,
    refuse_secrets,
    settings_of,
    with_variables,
)
from peagle.planning.pins import choose_pins, pin_variables
from peagle.planning.plan import (
    Decision,
    DrafterChoice,
    Options,
    Plan,
    ProofPlan,
    Reason,
    RuntimeChoice,
    Speculation,
    TargetChoice,
)
from peagle.planning.ranking import InstanceChoice, choose_count, choose_instance, speed_of
from peagle.planning.runtime import (
    choose_ami,
    choose_image,
    choose_name,
    choose_region,
    choose_runtime,
    proof_source,
)
from peagle.planning.settings import (
    choose_download_timeout,
    choose_startup_timeout,
    engine_arguments,
    engine_environment,
)
from peagle.planning.speculation import (
    build_speculation,
    check_k,
    choose_k,
    speculation_findings,
    usual_k,
)
from peagle.planning.weights import PlacedWeights, WeightSizes, place_weights, stream
from peagle.protocol import digest_in
from peagle.vllm.environment import check_environment, to_environment
from peagle_serve.contract import IMAGE_DIGEST_VARIABLE

T = TypeVar("T")


class _Decisions:
    """Collects reasons and findings in the order of the decisions."""

    def __init__(self) -> None:
        self.reasons: list[Reason] = []
        self._findings: list[Finding] = []

    def record(self, choice: Decision[T]) -> T:
        self.reasons += choice.reasons
        self.report(choice.findings)
        return choice.value

    def report(self, findings: Iterable[Finding]) -> None:
        self._findings += findings

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Errors first, otherwise in order, without duplicates."""
        found = dict.fromkeys(self._findings)
        return tuple(sorted(found, key=severity))


def make_plan(options: Options, catalog: Catalog) -> Plan:
    """The plan for these options: the same options and catalogue give the same plan.

    Raises UserError and NotFound for impossible options. Problems of a possible plan are findings;
    a plan with an error among them cannot be applied.
    """
    decisions = _Decisions()
    record = decisions.record
    check_k(options)
    check_overrides(options)
    requested = choose_drafter(options, catalog)
    evaluator = _evaluator(options, catalog, requested.value)
    ranked = choose_instance(evaluator)
    candidate = ranked.value.candidate
    pair = _pair_on(options, requested, ranked.value, decisions)
    work, instance = evaluator.work_on(candidate), candidate.instance
    name = record(choose_name(options, pair))
    region = record(choose_region(options, catalog.runtimes))
    runtime = record(choose_runtime(options, catalog, pair.target, pair.drafter))
    image = record(choose_image(options, catalog, runtime, region, pair))
    record(choose_load(options, pair.target))
    record(ranked)
    ami = record(choose_ami(options, catalog.runtimes, runtime, instance.type))
    count = record(choose_count(options, candidate))
    placed = record(place_weights(options, catalog, pair, name))
    sizes = _weight_sizes(placed, work)
    streamed = stream(sizes, candidate.on_instance, runtime, catalog.runtimes, region)
    engine = _configure_engine(options, work, candidate, placed, streamed, image, decisions)
    chosen = RuntimeChoice(vllm=runtime.vllm, image=image, cuda=runtime.cuda, ami=ami)
    decisions.report(_check(options, catalog, pair, work, candidate, chosen, region, engine))
    price = record(_price(options, instance, region))
    download_seconds = record(choose_download_timeout(options, sizes))
    gpus = candidate.fit.tensor_parallel_size
    startup_seconds = record(choose_startup_timeout(options, sizes, gpus))
    return Plan(
        name=name,
        pair=pair.name,
        region=region,
        target=_target_choice(pair.target, placed),
        drafter=_drafter_choice(pair, placed),
        speculation=engine.speculation,
        runtime=chosen,
        instance_type=instance.type,
        instance_count=count,
        **_load_fields(options, work),
        engine_arguments=engine.arguments,
        environment=engine.environment,
        mounts=placed.mounts,
        download_timeout_seconds=download_seconds,
        startup_timeout_seconds=startup_seconds,
        fit=candidate.fit,
        price_per_hour_usd=candidate.usd_per_hour,
        price_date=price.date.isoformat() if price else None,
        **_speed_fields(ranked.value),
        proof=_proof(pair, image, catalog),
        overrides=options.overrides,
        pins=choose_pins(options),
        findings=decisions.findings,
        reasons=tuple(decisions.reasons),
    )


def _load_fields(options: Options, work: PairLoad) -> dict[str, Any]:
    """The load that is planned for."""
    return {
        "max_model_len": work.max_model_len,
        "concurrency": work.concurrency,
        "prompt_tokens": work.workload.prompt_tokens,
        "output_tokens": work.workload.output_tokens,
        "slo": options.slo,
    }


def _speed_fields(choice: InstanceChoice) -> dict[str, Any]:
    """The speed of the selected candidate, and others for comparison."""
    return {
        "speed": speed_of(choice.candidate),
        "without_speculation": choice.alone,
        "alternatives": choice.alternatives,
    }


def _proof(pair: SelectedPair, image: str, catalog: Catalog) -> ProofPlan:
    """The target's prompts, and where the drafts of this image are counted."""
    source = proof_source(image, catalog.runtimes)
    return ProofPlan(**pair.target.proof.model_dump(), source=source)


def _price(options: Options, instance: Instance, region: str) -> Decision[Price | None]:
    """The price of one instance. With a limit, its error says that the price is unknown."""
    choice = price_of(instance, region)
    limited = options.max_price_per_hour is not None
    return Decision(None) if choice.value is None and limited else choice


def _evaluator(options: Options, catalog: Catalog, pair: SelectedPair) -> CandidateEvaluator:
    """For the pair before evidence can remove its drafter; reasons and findings of these decisions
    are recorded for the final one."""
    target, drafter = pair.target, pair.drafter
    region = choose_region(options, catalog.runtimes).value
    length = choose_length(options, target).value
    work = PairLoad(
        target,
        drafter,
        usual_k(options, drafter),
        choose_runtime(options, catalog, target, drafter).value.vllm,
        length,
        choose_concurrency(options).value,
        catalog,
        settings_of(options.settings),
        choose_workload(options, target, length).value,
        own_head=pair.own is not None,
    )
    return CandidateEvaluator(options, pair, work, region)


def _pair_on(
    options: Options,
    requested: Decision[SelectedPair],
    choice: InstanceChoice,
    decisions: _Decisions,
) -> SelectedPair:
    """The pair to plan: the requested one, with the drafter of the selected candidate."""
    candidate, asked = choice.candidate, requested.value
    if candidate.drafter == asked.drafter:
        pair = decisions.record(requested)
    else:
        decisions.report(requested.findings)
        pair = replace(asked, drafter=candidate.drafter)
    if pair.drafter is not None:
        own = pair.own is not None
        decisions.record(choose_k(options, pair.drafter, own, candidate.k, choice.compared))
        decisions.report(speculation_findings(options, pair, candidate.k, choice.compared))
    return pair


def _weight_sizes(placed: PlacedWeights, work: PairLoad) -> WeightSizes:
    """Target and drafter with their sizes in bytes."""
    drafter = [(placed.drafter, work.drafter_bytes)] if placed.drafter is not None else []
    return [(placed.target, work.target.weight_bytes), *drafter]


@dataclass(frozen=True)
class _Engine:
    """How vLLM is started: its speculation, its arguments, and the container's environment."""

    speculation: Speculation | None
    arguments: tuple[str, ...]
    environment: dict[str, str]


def _configure_engine(
    options: Options,
    work: PairLoad,
    candidate: Candidate,
    placed: PlacedWeights,
    streamed: Decision[dict[str, str]],
    image: str,
    decisions: _Decisions,
) -> _Engine:
    """The engine's configuration. Raises UserError for an environment that SageMaker rejects."""
    on_instance, load = candidate.on_instance, work.concurrency / candidate.busy
    speculation = build_speculation(work.drafter, work.k) if work.drafter else None
    speculation = with_break_even(speculation, work, on_instance, load)
    arguments = decisions.record(engine_arguments(options, work, on_instance, placed, speculation))
    extra = decisions.record(engine_environment(options, work, on_instance, placed))
    planned = to_environment(arguments) | extra | decisions.record(streamed)
    if digest := digest_in(image):  # a container cannot know its own; `peagle warm` needs it
        planned[IMAGE_DIGEST_VARIABLE] = digest
    environment = with_variables(planned, options.environment) | pin_variables(choose_pins(options))
    check_environment(environment)
    return _Engine(speculation, arguments, dict(sorted(environment.items())))


def _check(
    options: Options,
    catalog: Catalog,
    pair: SelectedPair,
    work: PairLoad,
    candidate: Candidate,
    runtime: RuntimeChoice,
    region: str,
    engine: _Engine,
) -> tuple[Finding, ...]:
    """The findings of the rules about this plan. Raises what ``refuse_secrets`` does."""
    planned = CaseOptions(
        k=work.k,
        # Planning shortens what the target does not support; the rules check the options.
        max_model_len=options.max_model_len or work.max_model_len,
        vllm=runtime.vllm,
        concurrency=work.concurrency,
        instance_type=candidate.instance.type,
        region=region,
        image=runtime.image,
        ami=options.ami or runtime.ami,
        tensor_parallel_size=candidate.fit.tensor_parallel_size,
        settings=settings_of(options.settings),
        environment=engine.environment,
    )
    own = options.target_checkpoint
    read = Checkpoints(own, options.drafter_checkpoint, own_target=own is not None)
    found = check(build_case(catalog, pair.target, pair.drafter, planned, read))
    refuse_secrets(found)
    return found


def _target_choice(target: Target, placed: PlacedWeights) -> TargetChoice:
    return TargetChoice(
        id=target.id,
        licence=target.licence,
        weight_bytes=target.weight_bytes,
        weights=placed.target,
    )


def _drafter_choice(pair: SelectedPair, placed: PlacedWeights) -> DrafterChoice | None:
    if pair.drafter is None:
        return None
    return DrafterChoice(
        name=pair.drafter.name,
        id=pair.name.partition("+")[2],
        licence=pair.drafter.licence,
        weights=placed.drafter,
    )
