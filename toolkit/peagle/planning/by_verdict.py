"""A plan whose drafter and K are those of a verdict, at the planned load."""

from __future__ import annotations

import math
from pathlib import Path

from peagle.catalog.find import find_instance, find_pair
from peagle.catalog.schema import Catalog
from peagle.errors import Fix, OptionsConflict, UserError, VerdictFileError
from peagle.findings import Finding, severity, warning
from peagle.options import Options
from peagle.planning.load import USUAL_CONCURRENCY, size_of_requests, with_workload
from peagle.planning.plan import Plan, Reason
from peagle.planning.planner import make_plan
from peagle.speed.models import Workload
from peagle.speed.verdict import LoadVerdict, Setting, Verdict, WorkloadVerdict
from peagle.text import format_concurrency
from peagle.vllm import versions

FARTHEST = 2.0
"""A verdict answers for loads, prompts and outputs that differ by at most this factor from its own:
beyond it another setting is often the fastest."""


def plan_by_verdict(options: Options, verdict: Verdict, file: Path, catalog: Catalog) -> Plan:
    """The plan with the verdict's drafter and K for the load of each instance, on the verdict's
    instance type unless the options name another with the same GPU.

    Raises VerdictFileError for a verdict on another target, GPU or vLLM version and for a load
    that it does not cover (``FARTHEST``), UserError for options that decide the same, and what
    ``make_plan`` raises.
    """
    _refuse_contradictions(options)
    pair = find_pair(catalog, options.pair)
    if pair.target.id != verdict.target:
        on = ("--gpu", verdict.gpu)
        raise _about_another(file, verdict.target, pair.target.id, options, on)
    instance_type = options.instance_type or verdict.instance_type
    instance = find_instance(catalog.instances, instance_type)
    if instance.gpu != verdict.gpu:
        here, on = f"{instance.gpu} ({instance_type})", ("--instance-type", instance_type)
        raise _about_another(file, verdict.gpu, here, options, on)
    options = with_workload(options).model_copy(update={"instance_type": instance_type})
    named = pair.drafter.name if pair.drafter and "+" in options.pair else None
    load = (options.concurrency or USUAL_CONCURRENCY) / (options.instance_count or 1)
    workload = None
    if options.prompt_tokens and options.output_tokens:
        workload = size_of_requests(options)
    tried: list[Setting] = []
    # The plan decides the numbers of instances and the size of requests, thus the load, by which
    # the verdict decides drafter and K. A setting that comes again ends it: each plan follows
    # from its setting, so there are at most as many rounds as the verdict has loads and sizes.
    for _ in range(1 + sum(len(size.loads) for size in verdict.workloads)):
        size, entry = verdict.at(workload, load)
        if entry.best is None:
            raise VerdictFileError(
                f"{file} knows no speed with {format_concurrency(entry.concurrency)}",
                "leave out --verdict",
                code="load-not-in-verdict",
            )
        if entry.best in tried:
            break
        if named and entry.best.drafter not in (None, named):
            raise UserError(
                f"{options.pair} names the drafter {named}, and the verdict {file} selects "
                f"{entry.best.drafter}",
                f"use {pair.target.short_name} with --verdict, or omit --verdict",
                code="verdict-selects-another",
            )
        tried.append(entry.best)
        made = make_plan(_with_setting(options, entry.best, file), catalog)
        if versions.compare(made.runtime.vllm, verdict.vllm) != 0:
            planned = f"vLLM {made.runtime.vllm}"
            version = ("--gpu", verdict.gpu, "--vllm", made.runtime.vllm)
            raise _about_another(file, f"vLLM {verdict.vllm}", planned, options, version)
        workload = made.request_size or workload
        load = made.concurrency / made.engines
    _refuse_uncovered(file, size, entry, made, options)
    reasons = tuple(_reasons(tried[-1], size, entry, file))
    others = _other_gpus(verdict, entry, made, file, options)
    findings = tuple(sorted((*made.findings, *others), key=severity))
    return made.model_copy(update={"reasons": (*reasons, *made.reasons), "findings": findings})


def _refuse_contradictions(options: Options) -> None:
    flags = {
        "--drafter": options.drafter is not None,
        "--k": options.k is not None,
        "--no-speculation": not options.speculation,
    }
    for flag, is_given in flags.items():
        if is_given:
            raise OptionsConflict(f"{flag} and --verdict exclude each other", f"leave out {flag}")


def _about_another(
    file: Path, has: str, needs: str, options: Options, on: tuple[str, ...]
) -> VerdictFileError:
    """The error that the verdict is about something else; ``on`` are the options of another one."""
    fix = Fix("create a verdict for this plan", _verdict_command(options, file, *on))
    return VerdictFileError(
        f"{file} is a verdict on {has}, not on {needs}", fix, code="verdict-of-another-plan"
    )


def _verdict_command(options: Options, file: Path, *on: str) -> tuple[str, ...]:
    """The command that writes the verdict for these GPUs and loads to ``file``."""
    return ("peagle", "verdict", options.pair, *on, "--output", str(file))


def is_covered(size: WorkloadVerdict, entry: LoadVerdict, planned: Workload, load: float) -> bool:
    """Whether the verdict's ``entry`` for ``size`` answers for ``load`` such requests."""
    ratios = (
        load / entry.concurrency,
        planned.prompt_tokens / size.prompt_tokens,
        planned.new_prompt_tokens / size.workload.new_prompt_tokens,
        planned.output_tokens / size.output_tokens,
    )
    return all(1 / FARTHEST <= ratio <= FARTHEST for ratio in ratios)


def _refuse_uncovered(
    file: Path, size: WorkloadVerdict, entry: LoadVerdict, plan: Plan, options: Options
) -> None:
    """Raise VerdictFileError if the verdict's nearest load or size is far from the planned one."""
    planned, load = plan.request_size or size.workload, math.ceil(plan.concurrency / plan.engines)
    if is_covered(size, entry, planned, load):
        return
    prompt, output = planned.prompt_tokens, planned.output_tokens
    cached, shared = planned.cached_prompt_tokens, planned.shared_prompt_tokens
    each = " on each instance" if plan.instance_count > 1 else ""
    each = " on each copy" if plan.copies and plan.engines > 1 else each
    message = (
        f"{file} does not cover {format_concurrency(load)} of {prompt:,} + {output:,} tokens{each}"
        f"; the nearest in it is {format_concurrency(entry.concurrency)} of "
        f"{size.prompt_tokens:,} + {size.output_tokens:,}"
    )
    gpus = str(plan.fit.tensor_parallel_size)
    command = _verdict_command(
        options,
        file,
        *("--instance-type", plan.instance_type, "--tensor-parallel-size", gpus),
        *("--concurrency", str(load)),
        *("--prompt-tokens", str(prompt), "--output-tokens", str(output)),
        *(("--cached-prompt-tokens", str(cached)) if cached else ()),
        *(("--shared-prompt-tokens", str(shared)) if shared else ()),
    )
    raise VerdictFileError(
        message, Fix("create a verdict for this load", command), code="load-not-in-verdict"
    )


def _with_setting(options: Options, setting: Setting, file: Path) -> Options:
    """The options with the drafter and K, or without speculation, as the verdict chose."""
    changes: dict[str, object] = {"speculation": False}
    if setting.drafter is not None:
        changes = {"drafter": setting.drafter, "k": setting.k}
    return options.model_copy(update={**changes, "chosen_by": _name(file)})


def _name(file: Path) -> str:
    """The verdict in reasons."""
    return f"the verdict {file.name}"


def _reasons(
    setting: Setting, size: WorkloadVerdict, load: LoadVerdict, file: Path
) -> list[Reason]:
    speed = load.speed(setting)
    throughput = f", {speed.tokens_per_second:,.0f} tokens/s {speed.basis}" if speed else ""
    because = (
        f"{_name(file)}: best with {format_concurrency(load.concurrency)} of "
        f"{size.prompt_tokens:,} + {size.output_tokens:,} tokens{throughput}"
    )
    drafter = Reason(what="drafter", value=setting.drafter or "none", because=because)
    if setting.drafter is None:
        return [drafter]
    return [drafter, Reason(what="k", value=str(setting.k), because=because)]


def _other_gpus(
    verdict: Verdict, load: LoadVerdict, plan: Plan, file: Path, options: Options
) -> tuple[Finding, ...]:
    """A warning where the plan runs the model on another number of GPUs."""
    size = plan.fit.tensor_parallel_size
    compared = load.tensor_parallel_size or verdict.tensor_parallel_size
    if size == compared:
        return ()
    message = f"{file.name} compares engines on {compared} x {verdict.gpu}; the plan uses {size}"
    on = ("--instance-type", plan.instance_type, "--tensor-parallel-size", str(size))
    command = _verdict_command(options, file, *on)
    fix = Fix("create a verdict for this number of GPUs", command)
    return (warning("verdict-other-gpus", "verdict", message, fix),)
