"""How vLLM is started: its configuration, and the findings of the rules about it."""

from __future__ import annotations

from dataclasses import dataclass

from peagle.case import CaseOptions, Checkpoints, build_case
from peagle.catalog.schema import Catalog
from peagle.catalog.tables import Runtime
from peagle.checks import check
from peagle.checks.facts import digest_in
from peagle.findings import Finding
from peagle.planning.candidates import Candidate, PairLoad
from peagle.planning.copies import Copies
from peagle.planning.drafter import SelectedPair
from peagle.planning.options import Options
from peagle.planning.overrides import refuse_secrets, settings_of, with_variables
from peagle.planning.pair_speed import break_even_decision, with_break_even
from peagle.planning.pins import choose_pins, pin_variables
from peagle.planning.plan import Decisions, RuntimeChoice, Speculation
from peagle.planning.settings import engine_arguments, engine_environment
from peagle.planning.speculation import build_speculation
from peagle.planning.weights import PlacedWeights, WeightSizes, stream
from peagle.vllm.environment import check_environment, to_environment
from peagle_serve.contract import IMAGE_DIGEST_VARIABLE


@dataclass(frozen=True)
class Placement:
    """What is served, and on what: the engine, and the endpoint's operation, follow from it."""

    options: Options
    catalog: Catalog
    pair: SelectedPair
    work: PairLoad
    candidate: Candidate
    region: str
    count: int
    copies: Copies | None
    placed: PlacedWeights
    sizes: WeightSizes
    runtime: RuntimeChoice


@dataclass(frozen=True)
class PlannedEngine:
    """How vLLM is started: its speculation, its arguments, and the container's environment."""

    speculation: Speculation | None
    arguments: tuple[str, ...]
    environment: dict[str, str]


def configure_engine(placement: Placement, runtime: Runtime, decisions: Decisions) -> PlannedEngine:
    """The engine's configuration. Raises UserError for an environment that SageMaker rejects."""
    options, work, placed = placement.options, placement.work, placement.placed
    on_instance, load = placement.candidate.on_instance, work.concurrency / placement.candidate.busy
    runtimes, region = placement.catalog.runtimes, placement.region
    streamed = stream(placement.sizes, on_instance, runtime, runtimes, region)
    speculation = build_speculation(work.drafter, work.k) if work.drafter else None
    speculation = with_break_even(speculation, work, on_instance, load)
    if placement.candidate.performance.extrapolated:
        decisions.record(break_even_decision(work, on_instance, load))
    arguments = decisions.record(engine_arguments(options, work, on_instance, placed, speculation))
    extra = decisions.record(engine_environment(options, work, on_instance, placed))
    planned = to_environment(arguments) | extra | decisions.record(streamed)
    if digest := digest_in(placement.runtime.image):
        # A container cannot know its own; `peagle warm` needs it.
        planned[IMAGE_DIGEST_VARIABLE] = digest
    environment = with_variables(planned, options.environment) | pin_variables(choose_pins(options))
    check_environment(environment)
    return PlannedEngine(speculation, arguments, dict(sorted(environment.items())))


def check_engine(placement: Placement, engine: PlannedEngine) -> tuple[Finding, ...]:
    """The findings of the rules about this plan. Raises what ``refuse_secrets`` does."""
    options, work, runtime = placement.options, placement.work, placement.runtime
    planned = CaseOptions(
        k=work.k,
        # Planning shortens what the target does not support; the rules check the options.
        max_model_len=options.max_model_len or work.max_model_len,
        vllm=runtime.vllm,
        concurrency=placement.candidate.load,
        instance_type=placement.candidate.instance.type,
        region=placement.region,
        image=runtime.image,
        ami=options.ami or runtime.ami,
        tensor_parallel_size=placement.candidate.fit.tensor_parallel_size,
        settings=settings_of(options.settings),
        environment=engine.environment,
        in_vpc=bool(options.subnets),
        network_isolation=options.network_isolation,
        kms_key=options.kms_key,
    )
    checkpoint = options.target_checkpoint
    read = Checkpoints(checkpoint, options.drafter_checkpoint, own_target=checkpoint is not None)
    pair = placement.pair
    findings = check(build_case(placement.catalog, pair.target, pair.drafter, planned, read))
    refuse_secrets(findings)
    return findings
