"""Options and catalogue become a Plan.

Every step is a function that returns a Decision: a value, its reasons, and findings. No step uses
the network, the clock or the disk.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from peagle.catalog.find import find_instance
from peagle.catalog.schema import Catalog, Drafter
from peagle.options import Options
from peagle.planning.batch import check_batch, choose_load_of_batch
from peagle.planning.candidates import Candidate
from peagle.planning.choose_instance import (
    InstanceChoice,
    alternative,
    best_candidate,
    choose_instance,
    copies_decision,
    count_decision,
    selected_candidate,
    speed_of,
)
from peagle.planning.company import choose_company
from peagle.planning.copies import check_copies, with_copies
from peagle.planning.drafter import SelectedPair, choose_drafter
from peagle.planning.engine import Placement, check_engine, configure_engine
from peagle.planning.engines import Load
from peagle.planning.evaluation import Evaluator
from peagle.planning.findings import queue_findings
from peagle.planning.limit import choose_limit, highest_price
from peagle.planning.load import (
    choose_concurrency,
    choose_length,
    choose_load,
    choose_workload,
    shorter_contexts,
    with_workload,
)
from peagle.planning.observe import choose_observe
from peagle.planning.overrides import check_overrides, settings_of
from peagle.planning.pins import choose_pins
from peagle.planning.plan import (
    Decision,
    Decisions,
    DrafterChoice,
    Plan,
    ProofPlan,
    RuntimeChoice,
    Speculation,
    TargetChoice,
)
from peagle.planning.rollout import check_rollout, choose_rollout
from peagle.planning.runtime import (
    choose_ami,
    choose_image,
    choose_name,
    choose_region,
    choose_runtime,
    price_of,
    proof_source,
)
from peagle.planning.scaling import check_scaling, choose_scaling, zero_findings
from peagle.planning.speculation import (
    check_k,
    is_drafter_named,
    k_decision,
    other_drafters,
    speculation_findings,
    usual_k,
)
from peagle.planning.start import choose_download_timeout, choose_startup_timeout, start_time
from peagle.planning.weights import place_weights, placed_sizes


def make_plan(options: Options, catalog: Catalog) -> Plan:
    """The plan for these options: the same options and catalogue give the same plan.

    Raises UserError and NotFound for impossible options. Problems of a possible plan are findings;
    a plan with an error among them cannot be applied.
    """
    decisions = Decisions()
    record, asked = decisions.record, options.asked
    options, requested = _fitting_context(_checked(options, catalog), catalog)
    load_of_batch, options_alone = _load_of_batch(options, catalog, requested.value)
    options = record(load_of_batch)
    evaluator = _evaluator(options, catalog, requested.value)
    alone = None
    if options_alone != options:
        alone = _evaluator(options_alone, catalog, requested.value).with_drafter(None)
    ranked = choose_instance(evaluator, alone)
    choice, candidate, load = ranked.value, ranked.value.candidate, evaluator.load
    pair = _pair_on(options, requested, choice, decisions)
    name = record(choose_name(options, pair))
    region = record(choose_region(options, catalog.runtimes))
    company = choose_company(options, region)
    runtime = record(choose_runtime(options, catalog, pair.target, pair.drafter))
    image = record(choose_image(options, catalog, runtime, region, pair))
    record(choose_load(options, pair.target))
    record(ranked)
    ami = record(choose_ami(options, catalog.runtimes, runtime, candidate.instance.type))
    count = record(count_decision(options, candidate))
    copies = record(copies_decision(options, candidate))
    placed = record(place_weights(options, catalog, pair, name))
    placement = Placement(
        options=options,
        pair=pair,
        load=load,
        candidate=candidate,
        region=region,
        copies=copies,
        placed=placed,
        sizes=placed_sizes(options, pair, load),
        runtime=RuntimeChoice(vllm=runtime.vllm, image=image, cuda=runtime.cuda, ami=ami),
    )
    engine = configure_engine(placement, runtime, decisions)
    decisions.report(check_engine(placement, engine))
    decisions.report(queue_findings(options, runtime.vllm, load.concurrency))
    operation = _operation(placement, count, engine.speculation, decisions)
    proof = pair.target.proof.model_dump()
    return Plan(
        name=name,
        pair=pair.name,
        region=region,
        target=TargetChoice(
            id=pair.target.id,
            licence=pair.target.licence,
            weight_bytes=pair.target.weight_bytes,
            weights=placed.target,
        ),
        drafter=DrafterChoice(
            name=pair.drafter.name,
            id=pair.name.partition("+")[2],
            licence=pair.drafter.licence,
            weights=placed.drafter,
        )
        if pair.drafter
        else None,
        speculation=engine.speculation,
        runtime=placement.runtime,
        instance_type=candidate.instance.type,
        instance_count=count,
        copies=copies,
        max_model_len=load.max_model_len,
        concurrency=load.concurrency,
        workload=options.workload,
        prompt_tokens=load.workload.prompt_tokens,
        cached_prompt_tokens=load.workload.cached_prompt_tokens,
        shared_prompt_tokens=load.workload.shared_prompt_tokens,
        output_tokens=load.workload.output_tokens,
        slo=options.slo,
        batch=candidate.batch,
        engine_arguments=engine.arguments,
        environment=engine.environment,
        mounts=placed.mounts,
        fit=candidate.fit,
        price_per_hour_usd=candidate.usd_per_hour,
        speed=speed_of(candidate),
        without_speculation=alternative(choice.alone) if choice.alone else None,
        alternatives=tuple(map(alternative, choice.shown)),
        proof=ProofPlan(**proof, source=proof_source(image, catalog.runtimes)),
        options=asked,
        overrides=options.overrides,
        pins=choose_pins(options),
        company=company,
        **operation,
        findings=decisions.findings,
        reasons=tuple(decisions.reasons),
    )


def select_candidate(options: Options, catalog: Catalog) -> Candidate:
    """The setting that ``make_plan`` selects on the user's instance type. Raises the same."""
    options, pair = _fitting_context(_checked(options, catalog), catalog)
    return selected_candidate(_evaluator(options, catalog, pair.value))


def _checked(options: Options, catalog: Catalog) -> Options:
    """The options with what ``--copies auto`` means. Raises UserError for options that exclude each
    other."""
    check_k(options)
    check_overrides(options)
    check_rollout(options)
    check_scaling(options)
    check_copies(options, catalog.instances)
    check_batch(options)
    return with_copies(with_workload(options))


def _fitting_context(options: Options, catalog: Catalog) -> tuple[Options, Decision[SelectedPair]]:
    """The pair, and the options with a shorter context where the default one fits nowhere: on the
    user's instance type, else on any."""
    requested = choose_drafter(options, catalog)
    if options.max_model_len is not None:
        return options, requested
    load, pair, _ = _load(options, catalog, requested.value)
    table = catalog.instances
    types = sorted(table.instances, key=lambda i: -i.gpu_count * i.gpu_memory_mib)
    if options.instance_type is not None:
        types = [find_instance(table, options.instance_type)]
    settings = [(pair.drafter, usual_k(options, pair.drafter))]
    if not is_drafter_named(options):
        settings.append((None, 0))
    for length in shorter_contexts(load.max_model_len, load.workload.tokens):
        shorter = load if length == load.max_model_len else replace(load, max_model_len=length)
        for instance in types:
            for drafter, k in settings:
                if shorter.engine_on(instance, 0, drafter, k).fit.fits:
                    options = options.model_copy(update={"fitting_length": length})
                    return options, choose_drafter(options, catalog)
    return options, requested


def _load(
    options: Options, catalog: Catalog, pair: SelectedPair
) -> tuple[Load, SelectedPair, tuple[Drafter | None, ...]]:
    """The load, the pair before evidence can remove its drafter, and what is compared with it;
    reasons and findings of these decisions are recorded for the final one."""
    target, length = pair.target, choose_length(options, pair.target).value
    load = Load(
        target,
        choose_runtime(options, catalog, target, pair.drafter).value.vllm,
        length,
        choose_concurrency(options).value,
        catalog,
        settings_of(options.settings),
        choose_workload(options, target, length).value,
        own_head=pair.drafter if pair.own is not None else None,
        of_one_size=options.requests is not None,
    )
    others = other_drafters(options, pair, load.vllm, length, load.workload.tokens)
    others = tuple(other for other in others if load.may_know(other))
    alternative = next(filter(None, others), None)
    if alternative is not None and not load.may_know(pair.drafter):
        # Its speed can be known, that of the pair's drafter cannot.
        pair = replace(pair, drafter=alternative)
        others = tuple(other for other in others if other != alternative)
    return load, pair, others


def _evaluator(options: Options, catalog: Catalog, pair: SelectedPair) -> Evaluator:
    load, pair, others = _load(options, catalog, pair)
    return Evaluator(options, pair, load, choose_region(options, catalog.runtimes).value, others)


def _load_of_batch(
    options: Options, catalog: Catalog, pair: SelectedPair
) -> tuple[Decision[Options], Options]:
    """The options with the load of a batch; and with that which is best without speculation."""

    def best(tried: Options) -> list[Candidate]:
        evaluator = _evaluator(tried, catalog, pair)
        either = (best_candidate(each) for each in (evaluator, evaluator.with_drafter(None)))
        return [candidate for candidate in either if candidate is not None]

    return choose_load_of_batch(options, best)


def _pair_on(
    options: Options,
    requested: Decision[SelectedPair],
    choice: InstanceChoice,
    decisions: Decisions,
) -> SelectedPair:
    """The pair to plan: the requested one, with the drafter of the selected candidate."""
    candidate, asked = choice.candidate, requested.value
    if candidate.drafter == asked.drafter:
        pair = decisions.record(requested)
    else:
        decisions.report(requested.findings)
        pair = replace(asked, drafter=candidate.drafter)
    if pair.drafter is not None:
        is_own = pair.own is not None
        decisions.record(k_decision(options, pair.drafter, is_own, candidate.k, choice.compared))
        decisions.report(speculation_findings(options, pair, candidate.k, choice.compared))
    return pair


def _operation(
    placement: Placement, count: int, speculation: Speculation | None, decisions: Decisions
) -> dict[str, Any]:
    """How the endpoint starts, is updated, scales, ends and is observed; and the price's date."""
    record, options, region = decisions.record, placement.options, placement.region
    candidate, copies, sizes = placement.candidate, placement.copies, placement.sizes
    load, usd, gpus = placement.load, candidate.usd_per_hour, candidate.gpus
    price = price_of(candidate.instance, region)
    if price.value is not None or options.max_price_per_hour is None:
        record(price)  # with a limit, the error of the limit says that the price is unknown
    download_seconds = record(choose_download_timeout(options, sizes))
    floor = speculation.acceptance_floor if speculation else None
    rollout = record(choose_rollout(options, count, usd, floor, copies))
    startup_seconds = record(choose_startup_timeout(options, sizes, gpus))
    start_seconds = None
    if options.max_instances is not None or options.scale_to_zero:
        start_seconds = record(start_time(options, sizes, gpus, load, candidate.instance))
    scaling = record(choose_scaling(options, load, candidate, start_seconds, copies))
    decisions.report(zero_findings(options, load.catalog.runtimes, region))
    most = highest_price(usd, count, scaling)
    longest_start = download_seconds + startup_seconds
    return {
        "price_date": price.value.date.isoformat() if price.value else None,
        "download_timeout_seconds": download_seconds,
        "startup_timeout_seconds": startup_seconds,
        "rollout": rollout,
        "scaling": scaling,
        "limit": record(choose_limit(options, region, most, longest_start, copies is not None)),
        "observe": record(choose_observe(options, region, floor)),
    }
