"""Options and catalogue become a Plan.

Every step is a function that returns a Decision: a value, its reasons, and findings. No step uses
the network, the clock or the disk.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from peagle.catalog.find import find_instance
from peagle.catalog.schema import Catalog
from peagle.catalog.tables import HERE
from peagle.findings import severity
from peagle.options import Options
from peagle.planning.candidates import Candidate
from peagle.planning.company import choose_company
from peagle.planning.engine import Placement, configure_engine
from peagle.planning.instance import choose_copies, choose_count, review, selection_reasons
from peagle.planning.load import (
    Load,
    choose_concurrency,
    choose_length,
    choose_workload,
    shorter_contexts,
    with_workload,
)
from peagle.planning.operation import (
    choose_limit,
    choose_observe,
    choose_rollout,
    choose_scaling,
    with_copies,
)
from peagle.planning.overrides import check_options
from peagle.planning.plan import (
    ABOUT_AWS,
    Decision,
    Decisions,
    DrafterChoice,
    Plan,
    ProofPlan,
    RuntimeChoice,
    SpeedEstimate,
    TargetChoice,
    reason,
)
from peagle.planning.runtime import (
    choose_ami,
    choose_image,
    choose_name,
    choose_region,
    choose_runtime,
    find_price,
    proof_source,
)
from peagle.planning.search import BATCH_LOADS, Search, Selection, prefer_known_speed, select
from peagle.planning.speculation import (
    SelectedPair,
    choose_drafter,
    explain_k,
    is_drafter_named,
    other_drafters,
    usual_k,
)
from peagle.planning.weights import (
    choose_pins,
    choose_timeouts,
    place_weights,
    placed_sizes,
    start_time,
)

_ROUNDS_WITHOUT_GAIN = 2
"""Larger loads of a batch are not compared after so many that cost more."""


def make_plan(options: Options, catalog: Catalog) -> Plan:
    """The plan for these options: the same options and catalogue give the same plan.

    Raises UserError and NotFound for impossible options. Problems of a possible plan are findings;
    a plan with an error among them cannot be applied.
    """
    decisions, recorded = Decisions(), options.recorded
    options, requested = _prepare(options, catalog)
    options, selection = _select(options, catalog, requested, decisions)
    placement = _place(options, selection, requested.value, decisions)
    speculation, arguments, environment = configure_engine(placement, decisions)
    price = find_price(placement.candidate.instance, placement.region)
    if price.value is not None or options.max_price_per_hour is None:
        decisions.record(price)  # with a limit, the error of the limit says that it is unknown
    floor = speculation.acceptance_floor if speculation else None
    skipped = ABOUT_AWS if placement.candidate.instance.type == HERE else ()
    operation = _choose_operation(placement, floor, decisions)
    findings = sorted(dict.fromkeys(decisions.findings), key=severity)
    return Plan(
        **_read_placement(placement),
        **operation,
        speculation=speculation,
        engine_arguments=arguments,
        environment=environment,
        price_date=price.value.date.isoformat() if price.value else None,
        without_speculation=selection.alone[0].to_alternative() if selection.alone else None,
        alternatives=tuple(shown.to_alternative() for shown in selection.shown()),
        options=recorded,
        overrides=options.overrides,
        pins=choose_pins(options),
        company=choose_company(options),
        findings=tuple(finding for finding in findings if finding.code not in skipped),
        reasons=tuple(decisions.reasons),
    )


def _select(
    options: Options, catalog: Catalog, requested: Decision[SelectedPair], decisions: Decisions
) -> tuple[Options, Selection]:
    """The options with the load of a batch, and what is selected of all candidates; the reasons of
    the requested pair hold only where its drafter is selected."""
    options, options_alone = _choose_batch_load(options, catalog, requested.value, decisions)
    search, alone = _search(options, catalog, requested.value), None
    if options_alone != options:
        alone = _search(options_alone, catalog, requested.value).with_drafter(None)
    selection = select(search, alone)
    decisions.findings += requested.findings
    if selection.candidate.drafter == requested.value.drafter:
        decisions.reasons += requested.reasons
    return options, selection


def _place(
    options: Options, selection: Selection, pair: SelectedPair, decisions: Decisions
) -> Placement:
    """Each decision about what is served and on what, with its reasons and findings."""
    record, search, candidate = decisions.record, selection.search, selection.candidate
    load, catalog = replace(search.load, engines=candidate.busy), search.load.catalog
    pair = replace(pair, drafter=candidate.drafter)
    compared = search.compared(candidate)
    record(explain_k(options, pair, candidate, compared, load.concurrency / candidate.busy))
    name = record(choose_name(options, pair))
    region = record(choose_region(options, catalog.runtimes))
    runtime = record(choose_runtime(options, catalog, pair.target, pair.drafter))
    image = record(choose_image(options, catalog, runtime, region, pair))
    length = record(choose_length(options, pair.target))
    record(choose_workload(options, pair.target, length))
    record(choose_concurrency(options))
    decisions.reasons += selection_reasons(selection, compared)
    decisions.findings += review(selection)
    engine = load.engine(candidate.instance, candidate.gpus, candidate.drafter, candidate.k)
    return Placement(
        options=options,
        pair=pair,
        load=load,
        candidate=replace(candidate, engine=engine),
        name=name,
        region=region,
        runtime=runtime,
        image=image,
        ami=record(choose_ami(options, catalog.runtimes, runtime, candidate.instance.type)),
        count=record(choose_count(options, candidate)),
        copies=record(choose_copies(options, candidate)),
        placed=record(place_weights(options, catalog, pair, name)),
        sizes=placed_sizes(options, pair, load),
    )


def _read_placement(placement: Placement) -> dict[str, Any]:
    """The fields of the plan that say what is served, for which load, and on what."""
    options, pair, load = placement.options, placement.pair, placement.load
    target, drafter, candidate = pair.target, pair.drafter, placement.candidate
    runtime, proof = placement.runtime, target.proof.model_dump()
    alternative = candidate.to_alternative()
    choice = None
    if drafter is not None:
        choice = DrafterChoice(
            name=drafter.name,
            id=pair.name.partition("+")[2],
            licence=drafter.licence,
            weights=placement.placed.drafter,
        )
    return {
        "name": placement.name,
        "pair": pair.name,
        "region": placement.region,
        "target": TargetChoice(
            id=target.id,
            licence=target.licence,
            weight_bytes=target.weight_bytes,
            weights=placement.placed.target,
        ),
        "drafter": choice,
        "runtime": RuntimeChoice(
            vllm=runtime.vllm, image=placement.image, cuda=runtime.cuda, ami=placement.ami
        ),
        "instance_type": candidate.instance.type,
        "instance_count": placement.count,
        "copies": placement.copies,
        "max_model_len": load.max_model_len,
        "concurrency": load.concurrency,
        "workload": options.workload,
        **asdict(load.workload),
        "slo": options.slo,
        "batch": candidate.batch,
        "mounts": placement.placed.mounts,
        "fit": candidate.fit,
        "price_per_hour_usd": candidate.usd_per_hour,
        "speed": SpeedEstimate(**alternative.model_dump(include=set(SpeedEstimate.model_fields))),
        "proof": ProofPlan(**proof, source=proof_source(placement.image, load.catalog.runtimes)),
    }


def _choose_operation(
    placement: Placement, floor: float | None, decisions: Decisions
) -> dict[str, Any]:
    """The fields of the plan that say how the endpoint starts, is updated, scales, ends and is
    observed; ``floor`` is the least acceptance length of a plan that speculates."""
    record, options, candidate = decisions.record, placement.options, placement.candidate
    usd, copies, region = candidate.usd_per_hour, placement.copies, placement.region
    timeouts = choose_timeouts(options, placement.sizes, candidate.gpus)
    download, startup = map(record, timeouts)
    start_seconds = None
    if options.max_instances is not None or options.scale_to_zero:
        start_seconds = record(
            start_time(options, placement.sizes, candidate.gpus, placement.load, candidate.instance)
        )
    scaling = record(
        choose_scaling(options, placement.load, candidate, start_seconds, copies, region)
    )
    prices = scaling.prices(usd, placement.count) if scaling else None
    most = prices[1] if prices else usd
    return {
        "download_timeout_seconds": download,
        "startup_timeout_seconds": startup,
        "scaling": scaling,
        "rollout": record(choose_rollout(options, placement.count, usd, floor, copies)),
        "limit": record(
            choose_limit(options, region, most, download + startup, copies is not None)
        ),
        "observe": record(choose_observe(options, region, floor)),
    }


def select_candidate(options: Options, catalog: Catalog) -> Candidate:
    """The setting that ``make_plan`` selects on the user's instance type. Raises the same."""
    options, pair = _prepare(options, catalog)
    search = _search(options, catalog, pair.value)
    named = search.named() or search.largest()
    return prefer_known_speed(named, search.with_drafter(None).possible())


def _prepare(options: Options, catalog: Catalog) -> tuple[Options, Decision[SelectedPair]]:
    """The pair, and the options with what ``--copies auto`` means, and with a shorter context where
    the default one fits nowhere: on the user's instance type, else on any. Raises UserError."""
    table = catalog.instances
    check_options(options, table)
    if options.instance_type == HERE:
        options = options.model_copy(update={"instance_count": 1})
    options = with_copies(with_workload(options))
    requested = choose_drafter(options, catalog)
    if options.max_model_len is not None:
        return options, requested
    search = _search(options, catalog, requested.value)
    load, drafter = search.load, search.pair.drafter
    types = sorted(table.instances, key=lambda i: -i.gpu_count * i.gpu_memory_mib)
    if options.instance_type is not None:
        types = [find_instance(table, options.instance_type)]
    settings = [(drafter, usual_k(options, drafter))]
    if not is_drafter_named(options):
        settings.append((None, 0))
    for length in shorter_contexts(load.max_model_len, load.workload.tokens):
        shorter = replace(load, max_model_len=length)
        for instance in types:
            for drafter, k in settings:
                if shorter.engine_on(instance, 0, drafter, k).fit.fits:
                    options = options.model_copy(update={"fitting_length": length})
                    return options, choose_drafter(options, catalog)
    return options, requested


def _search(options: Options, catalog: Catalog, pair: SelectedPair) -> Search:
    """The search with the pair before evidence can remove its drafter, and what is compared with
    it; reasons and findings of these decisions are recorded for the final one."""
    target, length = pair.target, choose_length(options, pair.target).value
    load = Load(
        target,
        choose_runtime(options, catalog, target, pair.drafter).value.vllm,
        length,
        choose_concurrency(options).value,
        catalog,
        options.settings,
        choose_workload(options, target, length).value,
        own_head=pair.drafter if pair.own_head is not None else None,
        of_one_size=options.requests is not None,
    )
    others = other_drafters(options, pair, load)
    another = next(filter(None, others), None)
    if another is not None and not load.may_know(pair.drafter):
        # Its speed can be known, that of the pair's drafter cannot.
        pair = replace(pair, drafter=another)
        others = tuple(other for other in others if other != another)
    return Search(options, pair, load, choose_region(options, catalog.runtimes).value, others)


def _choose_batch_load(
    options: Options, catalog: Catalog, pair: SelectedPair, decisions: Decisions
) -> tuple[Options, Options]:
    """The options with the number of concurrent requests at which the batch costs least on the best
    candidates, of those that meet what is required; where none does, at which it is the fastest.
    And the same for the target without speculation. Other options are unchanged."""
    if options.requests is None or options.concurrency is not None:
        return options, options
    best: dict[bool, tuple[tuple[bool, float], Options]] = {}
    rounds = 0
    for load in sorted({min(load, options.requests) for load in BATCH_LOADS}):
        tried, rounds = options.model_copy(update={"concurrency": load}), rounds + 1
        search, candidates = _search(tried, catalog, pair), list[Candidate]()
        # What is selected by cost, with the pair and with the target alone, where something fits.
        for each in (search, search.with_drafter(None)):
            named = each.named()
            ranked = [named] if named else each.ranking() or each.ranking(anywhere=True)
            candidates += ranked[:1]
        for candidate in candidates:
            batch, speed = candidate.batch, candidate.tokens_per_second
            if batch is None or not speed:
                continue
            meets = candidate.meets and candidate.holds_load and batch.usd is not None
            key = (not meets, batch.usd if meets and batch.usd is not None else -speed)
            for alone in {False, candidate is candidates[-1]}:
                if alone not in best or key < best[alone][0]:
                    best[alone], rounds = (key, tried), 0
        if rounds > _ROUNDS_WITHOUT_GAIN and not best.get(False, ((True,),))[0][0]:
            break
    if not best:
        return options, options
    (missed, usd), chosen = best[False]
    because = reason("concurrency", chosen.concurrency, "batch-lowest-cost", usd=usd)
    if missed:
        because = reason("concurrency", chosen.concurrency, "batch-fastest")
    decisions.reasons.append(because)
    return chosen, best.get(True, best[False])[1]
