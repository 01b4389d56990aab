"""Whether to speculate, with which drafter and K, and how vLLM is configured for it.

A pair names the kind of drafter; ``--drafter`` may name its weights: ``gpt-oss-20b+eagle3`` with
``--drafter s3://bucket/head/`` is the user's own head, run like the catalogue's EAGLE-3 head.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from peagle.catalog import find_drafter, find_pair, pair_name
from peagle.catalog.find import same_sizes
from peagle.catalog.schema import Catalog, Drafter, Target
from peagle.checkpoints.entries import drafter_from_checkpoint, own_drafter
from peagle.checkpoints.models import Checkpoint, is_hub_id, is_location, split_revision
from peagle.checks.rules.head_pairing import PASS_OWN_HEAD, replaced_by
from peagle.errors import Fix, NotFound, OptionsConflict, UserError, use_option
from peagle.findings import note, warning
from peagle.options import Options
from peagle.planning.candidates import Candidate
from peagle.planning.load import Load, choose_length, choose_workload
from peagle.planning.plan import Decisions, FloorSource, Plan, Speculation, Weights
from peagle.speed.acceptance import Acceptance, Performance
from peagle.speed.estimate import break_even_length
from peagle.speed.ranking import decisive
from peagle.text import format_concurrency
from peagle.vllm import versions
from peagle.vllm.defaults import method_title
from peagle_serve.contract import SPECULATION

NO_HEAD = "no-head"
"""The code of the findings about a target for which no head is known."""

NOT_READ = "head-not-read"
"""The code of the finding that the head was not read."""


@dataclass(frozen=True)
class SelectedPair:
    """The target and its drafter. ``own_head`` is the location of the user's own head.

    ``is_default``: this is the target's default pair, so the endpoint's name has no drafter.
    """

    target: Target
    drafter: Drafter | None
    own_head: str | None = None
    is_default: bool = True

    @property
    def name(self) -> str:
        """The pair in full: ``target+drafter``, or the target alone."""
        if self.own_head is not None:
            return f"{self.target.id}+{self.own_head}"
        return pair_name(self.target, self.drafter)


def choose_drafter(options: Options, catalog: Catalog, decisions: Decisions) -> SelectedPair:
    """The pair to plan: the named drafter, else the default one, or that for a longer context, or
    the fallback of one whose weights are not public. Raises NotFound and UserError."""
    pair = find_pair(catalog, options.pair)
    target, named = pair.target, pair.drafter if "+" in options.pair else None
    if not options.speculation:
        return SelectedPair(target, None, is_default=False)
    if options.drafter is not None:
        name, revision = split_revision(options.drafter)
        try:
            drafter = find_drafter(target, name)
        except NotFound:
            if is_location(name):
                return _own_head(options, target, named, decisions)
            raise
        if named not in (None, drafter):
            raise OptionsConflict(
                f"{options.pair} and --drafter {options.drafter} specify different drafters",
                "use one of them",
            )
        named = drafter
        if revision is not None:
            named = drafter.model_copy(update={"revision": revision})
    if named is None and target.default_drafter is None:
        return _without_head(options, target, catalog, decisions)
    drafter = named or find_drafter(target, target.default_drafter or "")
    choice = SelectedPair(target, drafter, is_default=drafter.name == target.default_drafter)
    if not drafter.public:
        if drafter.fallback is None:
            raise UserError(f"{drafter.title} is not public", PASS_OWN_HEAD, code="head-not-public")
        fallback = find_drafter(target, drafter.fallback)
        decisions.findings.append(replaced_by(drafter, fallback))
        return replace(choice, drafter=fallback)
    if named is not None:
        return choice
    length = choose_length(options, target, Decisions())
    size = choose_workload(options, target, length, Decisions())
    if drafter.long_context is not None and is_for_shorter(drafter, length, size.tokens):
        longer = find_drafter(target, drafter.long_context.drafter)
        decisions.explain("drafter", longer.name, "drafter-for-length", shorter=drafter.name)
        return replace(choice, drafter=longer)
    decisions.explain(
        "drafter", drafter.name, "drafter-of-target", target=target.id, use=drafter.use or None
    )
    return choice


def is_for_shorter(drafter: Drafter, max_model_len: int, request_tokens: int) -> bool:
    """Whether the target has another drafter for this context or this size of requests."""
    longer = drafter.long_context
    return longer is not None and (
        max_model_len > longer.max_model_len or request_tokens >= longer.request_tokens
    )


def heads_of_same_sizes(
    target: Target, catalog: Catalog, read: Checkpoint | None = None
) -> list[tuple[Target, str]]:
    """The targets of which this one may be a copy, each with the id of its default public head;
    only the one that its checkpoint names, if it names one."""
    named = str(read.config.get("_name_or_path") or "") if read else ""
    heads = []
    for other in catalog.targets.values():
        if other.id != target.id and other.default_drafter and same_sizes(target, other):
            head = find_drafter(other, other.default_drafter)
            if head.public and is_hub_id(head.weights or ""):
                heads.append((other, str(head.weights)))
    return [base for base in heads if named in (base[0].id, base[0].weights)] or heads


def _without_head(
    options: Options, target: Target, catalog: Catalog, decisions: Decisions
) -> SelectedPair:
    """The target alone: no head is known for it. Findings say what its owner can do: n-gram lookup,
    the public head of the only target that it may be a copy of, or training."""
    plan, message = ("peagle", "plan"), f"no EAGLE-3 or P-EAGLE head is known for {target.id}"
    ngram = Fix("n-gram lookup needs no head", (*plan, f"{options.pair}+ngram"))
    message = f"plans of {target.id} do not speculate: {message}"
    findings = decisions.findings
    findings.append(note(NO_HEAD, "drafter", message, ngram))
    bases = heads_of_same_sizes(target, catalog, options.target_checkpoint)
    if len(bases) == 1:
        base, weights = bases[0]
        message = f"{target.id} has the sizes of {base.id}: try the head of that model"
        command = (*plan, options.pair, "--drafter", weights, "--online")
        try_it = Fix("measure its acceptance before you rely on it", command)
        findings.append(note(NO_HEAD, "drafter", message, try_it))
    train = Fix(
        "see what training would cost and gain",
        ("peagle", "train", "plan", options.pair, "--data", "prompts.jsonl"),
    )
    message = f"a head trained for {target.id} has the best acceptance"
    findings.append(note(NO_HEAD, "drafter", message, train))
    decisions.explain("drafter", "none", "no-head", target=target.id)
    decisions.explain("speculation", "no", "no-head", target=target.id)
    return SelectedPair(target, None)


def _own_head(
    options: Options, target: Target, named: Drafter | None, decisions: Decisions
) -> SelectedPair:
    """The user's own head as a drafter of the kind that the pair names: else the target's default
    one or first that is a head, or where the catalogue has no drafters, what the head itself says.

    The rules judge a head whose checkpoint the options hold; an unread one gets a note.
    """
    location, read = options.drafter or "", options.drafter_checkpoint
    default = find_drafter(target, target.default_drafter) if target.default_drafter else None
    drafters = [*([default] if default else []), *target.drafters]
    kind = named or next((drafter for drafter in drafters if drafter.method == "eagle3"), None)
    if kind is None and not drafters and read is not None:
        kind = drafter_from_checkpoint(read)
    if kind is None and not target.drafters:
        raise UserError(
            f"{location} was not read, and {target.id} has no drafter in the catalogue: the head's "
            "method is unknown",
            "use a folder, or plan with --online to read a head on the Hub or in S3",
            code="head-method-unknown",
        )
    if kind is None or kind.method != "eagle3":
        raise UserError(
            f"{location}: {kind.title if kind else target.title} does not use a draft head",
            f"use the pair {target.short_name}, or one with an EAGLE-3 or P-EAGLE drafter",
            code="drafts-without-head",
        )
    head = own_drafter(location, target, kind, read)
    if read is None:
        called = method_title(kind.method, kind.parallel_drafting)
        message = f"{location} was not read; assuming a head like {kind.title} ({called})"
        fix = Fix("read and check it", ("peagle", "check", options.pair, "--drafter", location))
        decisions.findings.append(note(NOT_READ, "drafter", message, fix))
    # A head for a pair whose default head is not public replaces that head.
    is_default = default is not None and kind is default and not default.public
    return SelectedPair(target, head, split_revision(location)[0], is_default)


SpeedsByK = Mapping[tuple[str | None, int], Performance]
"""The performance of one engine at a load with each drafter, by name, and K."""

_SHOWN_KS = (1, 2, 3, 5, 7, 10)
"""Shown for comparison in the reason of K, in addition to the fastest."""

_CLOSE_TO_FASTEST = 0.95
"""Below this share of the fastest K's speed, the user's own K gets a note."""

LIKELY_LENGTH = 2.0
"""Tokens per step that a drafter without a known acceptance is assumed to make, to find its
break-even length, which hardly depends on it."""

_CONFIG_FLAG = "--speculative-config"


def usual_k(options: Options, drafter: Drafter | None) -> int:
    """The user's K, else the recommended one; 0 without a drafter."""
    if drafter is None:
        return 0
    return drafter.k_recommended if options.k is None else options.k


def is_drafter_named(options: Options) -> bool:
    """Whether the user decides whether, or with what, to speculate."""
    named = "+" in options.pair or options.drafter is not None or options.k is not None
    return named or not options.speculation


def other_drafters(options: Options, pair: SelectedPair, load: Load) -> tuple[Drafter | None, ...]:
    """What is compared with the pair's drafter: no speculation, and the target's public drafters
    that run with this vLLM and this context and whose speed can be known; nothing if the user named
    the drafter."""
    if pair.drafter is None or is_drafter_named(options):
        return ()
    vllm, tokens = load.vllm, load.workload.tokens
    usable = [
        drafter
        for drafter in pair.target.drafters
        if drafter.public
        and drafter.weights is not None
        and drafter != pair.drafter
        and versions.compare(vllm, drafter.min_vllm) >= 0
        and not any(
            problem.level == "error" and (not problem.vllm or versions.in_range(vllm, problem.vllm))
            for problem in drafter.problems
        )
        and (drafter.max_positions is None or tokens <= drafter.max_positions)
        and not is_for_shorter(drafter, load.max_model_len, tokens)
    ]
    return tuple(drafter for drafter in (None, *usable) if load.may_know(drafter))


def explain_k(
    options: Options,
    pair: SelectedPair,
    candidate: Candidate,
    compared: SpeedsByK,
    decisions: Decisions,
) -> None:
    """Why the candidate has its K, which ``Search`` selected: the user's, the fastest, or the
    recommended one. ``compared`` has the speeds on the candidate's GPUs at its load.

    Findings say what is faster there than the drafter or the K that the user named.
    """
    drafter, k = pair.drafter, candidate.k
    requests = candidate.load.concurrency / candidate.load.engines
    if drafter is None:
        return
    rated = {key: speed for key, speed in compared.items() if speed.tokens_per_second is not None}
    by_k = {k: speed for (name, k), speed in rated.items() if name == drafter.name}
    decided = decisive(by_k.values())
    by_k = {k: speed for k, speed in by_k.items() if speed in decided}
    rates = {k: speed.tokens_per_second or 0.0 for k, speed in by_k.items()}
    best = min(rates, key=lambda k: (-rates[k], k), default=0)
    load = format_concurrency(round(requests, 1))
    if best and is_drafter_named(options):
        without = rated.get((None, 0))
        alone = (without.tokens_per_second or 0.0) if without else 0.0
        origin = f"{by_k[best].basis}, {by_k[best].source}"
        if alone > rates[best]:
            message = (
                f"with {load}, {pair.target.title} reaches {alone:,.0f} tokens/s alone and "
                f"{rates[best]:,.0f} at best (K={best}) with {drafter.title}: {origin}"
            )
            fix = "use --no-speculation, unless your requests are more predictable"
            decisions.findings.append(warning("speculation-loses", "drafter", message, fix))
        elif k in rates and rates[k] < _CLOSE_TO_FASTEST * rates[best]:
            message = (
                f"K={k} reaches {rates[k]:,.0f} tokens/s with {load}, K={best} "
                f"{rates[best]:,.0f}: {origin}"
            )
            faster = use_option("--k", best, ", or leave --k out")
            decisions.findings.append(note("k-below-fastest", "k", message, faster))
    if options.k is not None:
        return
    if k in rates:
        shown = sorted({n for n in rates if n in _SHOWN_KS or n == best} - {k})
        code = "fastest-k" if rates[k] >= rates[best] else "smallest-k-as-fast"
        decisions.explain(
            "k",
            k,
            code,
            basis=by_k[k].basis,
            tokens_per_second=round(rates[k], 1),
            requests=round(requests, 1),
            others={str(n): round(rates[n], 1) for n in shown},
        )
    elif pair.own_head is not None:
        # Only a copy of the catalogue's head has a licence.
        code = "k-without-card" if drafter.licence is None else "k-of-own-head"
        decisions.explain("k", k, code, source=drafter.source)
    else:
        decisions.explain("k", k, "k-of-drafter", drafter=drafter.title, source=drafter.source)


def choose_speculation(candidate: Candidate) -> Speculation | None:
    """The candidate's speculation with the floor of its proof: the catalogue's, else the acceptance
    length above which it is faster than the target alone, with its requests on its GPUs.

    Without a floor where the speed is not known, and where the drafter is not expected to reach
    that length: findings of the plan report it, and a proof could only fail.
    """
    drafter, k, load = candidate.drafter, candidate.k, candidate.load
    if drafter is None:
        return None
    floor = choose_floor(drafter, k)
    source: FloorSource = "catalogue"
    if floor is None:
        requests, acceptance = load.concurrency / load.engines, load.acceptance(drafter, k)
        assumed = likely_acceptance(acceptance, k)
        drafting = load.performance(candidate.engine, drafter, k, requests, assumed=assumed)
        engine = load.engine(candidate.instance, candidate.gpus, None, 0)
        alone = load.performance(engine, None, 0, requests)
        length = break_even_length(drafting, alone, load.workload, requests)
        most = k + 1 if acceptance.basis == "unknown" else acceptance.length
        if length is not None and 1 < round(length, 2) <= most:
            floor, source = round(length, 2), "break-even"
    return Speculation(
        method=drafter.method,
        parallel_drafting=drafter.parallel_drafting,
        k=k,
        settings=dict(drafter.speculative_settings),
        acceptance_floor=floor,
        acceptance_floor_source=None if floor is None else source,
    )


def likely_acceptance(acceptance: Acceptance, k: int) -> Acceptance:
    """What is assumed of a drafter of which no acceptance is known."""
    if acceptance.basis != "unknown":
        return acceptance
    return Acceptance(min(LIKELY_LENGTH, k + 1), "assumed", "assumed: none is known")


def choose_floor(drafter: Drafter, k: int) -> float | None:
    """The least acceptance length of this drafter with this K that is a proof, if there is one.

    The catalogue's floor is for the recommended K; a smaller K has a lower one: later positions are
    never accepted more often than earlier ones, so the first K of N accept at least K/N of what all
    N accept.
    """
    floor, share = drafter.acceptance_floor, min(k / drafter.k_recommended, 1)
    return None if floor is None else round(1 + (floor - 1) * share, 2)


def speculative_config(speculation: Speculation, weights: Weights | None) -> str:
    """The value of vLLM's ``--speculative-config``: JSON on one line, in ASCII."""
    config: dict[str, Any] = {"method": speculation.method}
    if weights is not None:
        config["model"] = weights.engine_path
        if weights.revision is not None:
            config["revision"] = weights.revision
    config["num_speculative_tokens"] = speculation.k
    if speculation.parallel_drafting:
        config["parallel_drafting"] = True
    return json.dumps(config | speculation.settings, separators=(",", ":"))


def with_speculation(plan: Plan, speculation: Speculation | None) -> Plan:
    """The plan with this speculation of its drafter, or of its target alone, in the engine's
    arguments and environment too.

    Instance, memory and speeds stay those of ``plan``. Raises UserError for a plan without a
    drafter.
    """
    if plan.speculation is None:
        raise UserError(f"{plan.pair} has no drafter", "choose a pair with one", "no-plan")
    arguments = list(plan.engine_arguments)
    at = arguments.index(_CONFIG_FLAG)
    environment = {name: value for name, value in plan.environment.items() if name != SPECULATION}
    changed: dict[str, Any] = {"speculation": speculation}
    if speculation is None:
        changed |= {"drafter": None, "pair": plan.target.id}
        del arguments[at : at + 2]
    else:
        config = speculative_config(speculation, plan.weights.get("drafter"))
        arguments[at + 1] = environment[SPECULATION] = config
    return plan.model_copy(
        update={**changed, "environment": environment, "engine_arguments": tuple(arguments)}
    )


def without_floor(plan: Plan) -> Plan:
    """The plan without an acceptance floor, for a measurement: a low acceptance is a result."""
    if plan.speculation is None:
        return plan
    none = {"acceptance_floor": None, "acceptance_floor_source": None}
    return plan.model_copy(update={"speculation": plan.speculation.model_copy(update=none)})
