"""Options and catalogue become a Plan.

Every step is a function that returns what it decides, and adds its reasons and findings to
``Decisions``. No step uses the network, the clock or the disk.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import product
from typing import Any

from peagle.catalog.find import find_instance
from peagle.catalog.schema import Catalog
from peagle.catalog.tables import HERE
from peagle.findings import severity
from peagle.options import Options
from peagle.planning.candidates import Candidate
from peagle.planning.company import choose_company
from peagle.planning.engine import configure_engine
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
    Decisions,
    DrafterChoice,
    Plan,
    ProofPlan,
    RuntimeChoice,
    SpeedEstimate,
    TargetChoice,
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
    choose_speculation,
    explain_k,
    is_drafter_named,
    other_drafters,
    usual_k,
)
from peagle.planning.weights import (
    SHORTEST,
    choose_pins,
    choose_timeouts,
    mount_weights,
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
    decisions, pair_decisions, requested = Decisions(), Decisions(), options
    options, pair = _prepare(options, catalog, pair_decisions)
    options, options_alone = _choose_batch_load(options, catalog, pair, decisions)
    search, alone = _search(options, catalog, pair), None
    if options_alone != options:
        alone = _search(options_alone, catalog, pair).with_drafter(None)
    selection = select(search, alone)
    decisions.findings += pair_decisions.findings
    if selection.candidate.drafter == pair.drafter:
        decisions.reasons += pair_decisions.reasons
    pair = replace(pair, drafter=selection.candidate.drafter)
    plan, candidate = _place(options, requested, pair, selection, decisions)
    plan = configure_engine(plan, options, pair, candidate, decisions)
    plan = _operate(plan, options, pair, candidate, decisions)
    findings = sorted(dict.fromkeys(decisions.findings), key=severity)
    skipped = ABOUT_AWS if plan.is_here else ()
    return plan.model_copy(
        update={
            "findings": tuple(finding for finding in findings if finding.code not in skipped),
            "reasons": tuple(decisions.reasons),
        }
    )


def _place(
    options: Options,
    requested: Options,
    pair: SelectedPair,
    selection: Selection,
    decisions: Decisions,
) -> tuple[Plan, Candidate]:
    """What is served and on what: the plan before its engine and its operation, and the candidate
    with the memory of its share of the load."""
    search, candidate, load = selection.search, selection.candidate, selection.candidate.load
    catalog, target, drafter = load.catalog, pair.target, pair.drafter
    compared = search.compared(candidate)
    explain_k(options, pair, candidate, compared, decisions)
    name = choose_name(options, pair, decisions)
    region = choose_region(options, catalog.runtimes, decisions)
    runtime = choose_runtime(options, catalog, target, drafter, decisions)
    image = choose_image(options, catalog, runtime, region, pair, decisions)
    choose_workload(options, target, choose_length(options, target, decisions), decisions)
    choose_concurrency(options, decisions)
    decisions.reasons += selection_reasons(selection, compared)
    decisions.findings += review(selection)
    engine = load.engine(candidate.instance, candidate.gpus, drafter, candidate.k)
    candidate = replace(candidate, engine=engine)
    ami = choose_ami(options, catalog.runtimes, runtime, candidate.instance.type, decisions)
    count = choose_count(options, candidate, decisions)
    copies = choose_copies(options, candidate, decisions)
    weights, head = place_weights(options, catalog, pair, name, decisions)
    speed = candidate.to_alternative().model_dump(include=set(SpeedEstimate.model_fields))
    choice = None
    if drafter is not None:
        head_id = pair.name.partition("+")[2]
        choice = DrafterChoice(name=drafter.name, id=head_id, licence=drafter.licence, weights=head)
    plan = Plan(
        name=name,
        pair=pair.name,
        region=region,
        target=TargetChoice(
            id=target.id,
            licence=target.licence,
            weight_bytes=target.weight_bytes,
            weights=weights,
        ),
        drafter=choice,
        speculation=choose_speculation(candidate),
        runtime=RuntimeChoice(vllm=runtime.vllm, image=image, cuda=runtime.cuda, ami=ami),
        instance_type=candidate.instance.type,
        instance_count=count,
        copies=copies,
        max_model_len=load.max_model_len,
        concurrency=load.concurrency,
        engine_arguments=(),
        environment={},
        mounts=mount_weights(weights, head),
        download_timeout_seconds=SHORTEST,
        startup_timeout_seconds=SHORTEST,
        fit=candidate.fit,
        price_per_hour_usd=candidate.usd_per_hour,
        price_date=None,
        workload=options.workload,
        **asdict(load.workload),
        batch=candidate.batch,
        slo=options.slo,
        speed=SpeedEstimate(**speed),
        without_speculation=selection.alone[0].to_alternative() if selection.alone else None,
        alternatives=tuple(shown.to_alternative() for shown in selection.shown()),
        proof=ProofPlan(**target.proof.model_dump(), source=proof_source(image, catalog.runtimes)),
        options=requested.recorded,
        overrides=options.overrides,
        pins=choose_pins(options),
        company=choose_company(options),
        findings=(),
        reasons=(),
    )
    return plan, candidate


def _operate(
    plan: Plan, options: Options, pair: SelectedPair, candidate: Candidate, decisions: Decisions
) -> Plan:
    """The plan with how the endpoint starts, is updated, scales, ends and is observed."""
    sizes = placed_sizes(options, pair, candidate.load)
    price, price_findings = find_price(candidate.instance, plan.region)
    if price is not None or options.max_price_per_hour is None:
        decisions.findings += price_findings  # with a limit, its error says that it is unknown
    download, startup = choose_timeouts(options, sizes, candidate.gpus, decisions)
    changed: dict[str, Any] = {
        "price_date": price.date.isoformat() if price else None,
        "download_timeout_seconds": download,
        "startup_timeout_seconds": startup,
    }
    if options.max_instances is not None or options.scale_to_zero:
        seconds = start_time(
            options, sizes, candidate.gpus, candidate.load, candidate.instance, decisions
        )
        changed["scaling"] = choose_scaling(options, plan, candidate, seconds, decisions)
    plan = plan.model_copy(update=changed)
    changed = {
        "rollout": choose_rollout(options, plan, decisions),
        "limit": choose_limit(options, plan, decisions),
        "observe": choose_observe(options, plan, decisions),
    }
    return plan.model_copy(update=changed)


def select_candidate(options: Options, catalog: Catalog) -> Candidate:
    """The setting that ``make_plan`` selects on the user's instance type. Raises the same."""
    options, pair = _prepare(options, catalog, Decisions())
    search = _search(options, catalog, pair)
    named = search.named() or search.largest()
    return prefer_known_speed(named, search.with_drafter(None).possible())


def _prepare(
    options: Options, catalog: Catalog, decisions: Decisions
) -> tuple[Options, SelectedPair]:
    """The pair, and the options with what ``--copies auto`` means, and with a shorter context where
    the default one fits nowhere: on the user's instance type, else on any. Raises UserError."""
    table = catalog.instances
    check_options(options, table)
    if options.instance_type == HERE:
        options = options.model_copy(update={"instance_count": 1})
    options = with_copies(with_workload(options))
    if options.max_model_len is not None:
        return options, choose_drafter(options, catalog, decisions)
    search = _search(options, catalog, choose_drafter(options, catalog, Decisions()))
    load, drafter = search.load, search.pair.drafter
    types = sorted(table.instances, key=lambda i: -i.gpu_count * i.gpu_memory_mib)
    if options.instance_type is not None:
        types = [find_instance(table, options.instance_type)]
    settings = [(drafter, usual_k(options, drafter))]
    if not is_drafter_named(options):
        settings.append((None, 0))
    for length in shorter_contexts(load.max_model_len, load.workload.tokens):
        shorter = replace(load, max_model_len=length)
        tried = product(types, settings)
        if any(shorter.engine_on(instance, 0, *each).fit.fits for instance, each in tried):
            options = options.model_copy(update={"fitting_length": length})
            break
    return options, choose_drafter(options, catalog, decisions)


def _search(options: Options, catalog: Catalog, pair: SelectedPair) -> Search:
    """The search with the pair before evidence can remove its drafter, and what is compared with
    it; reasons and findings of these decisions are recorded for the final one."""
    target, unused = pair.target, Decisions()
    length = choose_length(options, target, unused)
    load = Load(
        target,
        choose_runtime(options, catalog, target, pair.drafter, unused).vllm,
        length,
        choose_concurrency(options, unused),
        catalog,
        options.settings,
        choose_workload(options, target, length, unused),
        own_head=pair.drafter if pair.own_head is not None else None,
        of_one_size=options.requests is not None,
    )
    others = other_drafters(options, pair, load)
    another = next(filter(None, others), None)
    if another is not None and not load.may_know(pair.drafter):
        # Its speed can be known, that of the pair's drafter cannot.
        pair = replace(pair, drafter=another)
        others = tuple(other for other in others if other != another)
    return Search(options, pair, load, choose_region(options, catalog.runtimes, unused), others)


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
    code = "batch-fastest" if missed else "batch-lowest-cost"
    usd_of_batch = None if missed else usd
    decisions.explain("concurrency", chosen.concurrency, code, usd=usd_of_batch)
    return chosen, best.get(True, best[False])[1]
