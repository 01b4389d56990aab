"""A plan whose drafter and K are those of a verdict."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peagle.catalog.find import find_instance, find_pair
from peagle.catalog.schema import Catalog
from peagle.errors import Fix, OptionsConflict, VerdictFileError
from peagle.options import Options, arguments
from peagle.planning.load import USUAL_CONCURRENCY, choose_size_of_requests, with_workload
from peagle.planning.plan import Plan, reason
from peagle.planning.planner import make_plan
from peagle.planning.verdict import VerdictOptions
from peagle.speed.ranking import Setting
from peagle.speed.verdict import LoadVerdict, Verdict, WorkloadVerdict, is_covered
from peagle.text import format_concurrency
from peagle.vllm import versions


def plan_by_verdict(options: Options, verdict: Verdict, file: Path, catalog: Catalog) -> Plan:
    """The plan with the verdict's drafter and K for the load of each instance, on the verdict's
    instance type unless the options name another with the same GPU.

    Raises VerdictFileError for a verdict on another target, GPU or vLLM version and for a load
    that it does not cover (``is_covered``), UserError for options that decide the same, and what
    ``make_plan`` raises.
    """
    for flag, is_set in (
        ("--drafter", options.drafter is not None),
        ("--k", options.k is not None),
        ("--no-speculation", not options.speculation),
    ):
        if is_set:
            raise OptionsConflict(f"{flag} and --verdict exclude each other", f"leave out {flag}")
    instance_type = options.instance_type or verdict.instance_type
    gpu = find_instance(catalog.instances, instance_type).gpu
    options = with_workload(options).model_copy(update={"instance_type": instance_type})
    _check_subject(options, file, verdict.target, find_pair(catalog, options.pair).target.id)
    _check_subject(options, file, verdict.gpu, gpu)
    plan, size, entry, setting = _plan_until_same(options, verdict, file, catalog)
    planned = plan.request_size or size.workload
    requests = math.ceil(plan.concurrency / plan.engines)
    if not is_covered(size, entry, planned, requests):
        load = {name: tokens or None for name, tokens in asdict(planned).items()}
        raise VerdictFileError(
            f"{file} does not cover {format_concurrency(requests)} of {planned.prompt_tokens:,} + "
            f"{planned.output_tokens:,} tokens on each engine; the nearest in it is "
            f"{format_concurrency(entry.concurrency)} of {size.prompt_tokens:,} + "
            f"{size.output_tokens:,} tokens",
            Fix(
                "create a verdict for this load", _command(options, file, loads=(requests,), **load)
            ),
            code="load-not-in-verdict",
        )
    speed = entry.speed(setting)
    decided = {"drafter": setting.drafter or "none", **({"k": setting.k} if setting.k else {})}
    reasons = (
        reason(
            what,
            value,
            "best-in-verdict",
            file=file.name,
            requests=entry.concurrency,
            prompt_tokens=size.prompt_tokens,
            output_tokens=size.output_tokens,
            tokens_per_second=speed.tokens_per_second if speed else None,
            basis=speed.basis if speed else None,
        )
        for what, value in decided.items()
    )
    return plan.model_copy(update={"reasons": (*reasons, *plan.reasons)})


def _plan_until_same(
    options: Options, verdict: Verdict, file: Path, catalog: Catalog
) -> tuple[Plan, WorkloadVerdict, LoadVerdict, Setting]:
    """Plan again until the verdict selects a setting that was planned already; with the part of the
    verdict about the load of the plan's engines. A plan decides the number of instances and the
    size of requests, thus the load of an engine, by which the verdict selects the drafter and K of
    the next plan."""
    load = (options.concurrency or USUAL_CONCURRENCY) / (options.instance_count or 1)
    workload = None
    if options.prompt_tokens and options.output_tokens:
        workload = choose_size_of_requests(options)
    plans: dict[Setting, Plan] = {}
    while True:
        size, entry = verdict.at(workload, load)
        best = entry.best
        if best is None:
            raise VerdictFileError(
                f"{file} knows no speed with {format_concurrency(entry.concurrency)}",
                "leave out --verdict",
                code="load-not-in-verdict",
            )
        if best in plans:
            last, plan = plans.popitem()
            return plan, size, entry, last
        changes: dict[str, object] = {"speculation": False}
        if best.k:
            changes = {"drafter": best.drafter, "k": best.k}
        plan = plans[best] = make_plan(options.model_copy(update=changes), catalog)
        vllm = plan.runtime.vllm
        if versions.compare(vllm, verdict.vllm) != 0:
            _check_subject(options, file, f"vLLM {verdict.vllm}", f"vLLM {vllm}")
        workload = plan.request_size or workload
        load = plan.concurrency / plan.engines


def _check_subject(options: Options, file: Path, has: str, needs: str) -> None:
    """Raise VerdictFileError for a verdict about something else."""
    if has != needs:
        raise VerdictFileError(
            f"{file} is a verdict on {has}, not on {needs}",
            Fix("create a verdict for this plan", _command(options, file)),
            code="verdict-of-another-plan",
        )


def _command(options: Options, file: Path, **asked: Any) -> tuple[str, ...]:
    """The command that writes a verdict for these options, by default for the usual loads."""
    verdict = VerdictOptions(
        pair=options.pair, instance_type=options.instance_type, vllm=options.vllm, **asked
    )
    return ("peagle", "verdict", options.pair, *arguments(verdict), "--output", str(file))
