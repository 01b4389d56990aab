"""``peagle bench PAIR --sweep``: measure several settings of a pair."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from peagle import api
from peagle.bench.acceptance import SweepLossless
from peagle.bench.models import BenchResult, BenchSetting
from peagle.bench.sweep import EndpointSweep, SweepProgress, SweepRequest
from peagle.cli.account import Account, account_options, find_deployment, names_deployment
from peagle.cli.context import PeagleCommand, command_text, is_plan_file, typed_command
from peagle.cli.local import local_image
from peagle.cli.options import (
    command_catalog,
    complete_pair,
    raise_first_error,
    repetitions_option,
    requests_option,
    yes_option,
)
from peagle.cli.output.console import (
    confirm,
    json_option,
    print_facts,
    print_status,
)
from peagle.cli.output.progress import DeploymentProgress, StatusLine
from peagle.cli.parameter_types import LOADS, USD, OneOf, OutputPath
from peagle.cli.plan_options import planning_choices, planning_options
from peagle.cli.planned import planned
from peagle.cli.sweep_outputs import check_outputs, write_outputs
from peagle.engine.runner import LocalOptions
from peagle.errors import Fix, OptionMissing, OptionsConflict, PeagleError, UserError
from peagle.planning import Plan
from peagle.text import format_duration, format_price, format_usd

_OWN = (
    "k", "concurrency", "no_speculation", "verdict", "min_tokens_per_second", "max_price_per_hour",
    "workload", "cached_prompt_tokens", "shared_prompt_tokens", "requests", "within",
)  # fmt: skip
"""Planning options that a sweep sets itself, or that say nothing about it."""

_OF_LOADS = ("region", "prompt_tokens", "output_tokens", "slo")
"""Planning options that a sweep of a deployment takes too."""

_NAME = ("bench", "sweep")
_OPTIONS = (
    click.option("--sweep", required=True, metavar="k=LIST",
                 help="K of each setting, and none for no speculation: k=none,1,3,5."),
    click.option("--concurrency", "loads", type=LOADS, default="1,8,32", show_default=True,
                 metavar="N[,N...]",
                 help="Requests at a time; several loads are measured in turn."),
    click.option("--workload", "workloads", multiple=True, metavar="NAME|FILE",
                 help="short-prompt, long-prompt, long-answer, or a file of prompts; repeatable.  "
                 "[default: short-prompt]"),
    repetitions_option,
    requests_option,
    click.option("--engine", "engine_kind", type=OneOf(["process", "docker"]),
                 default="process", show_default=True,
                 help="Run the engines as processes or in containers."),
    click.option("--gpus", is_flag=True, help="Docker: use the GPU image and all GPUs."),
    click.option("--impose-acceptance", "acceptance", metavar="FILE",
                 type=click.Path(path_type=Path),
                 help="GPU: impose the acceptance in FILE, a result of bench --acceptance."),
    click.option("--domain", help="With --impose-acceptance: of this domain only."),
    click.option("--lossless", is_flag=True,
                 help="Check that speculation changes no greedy answer to the prompts of the "
                 "workload's file, else the catalogue's."),
    click.option("--price-per-hour", type=USD, metavar="USD",
                 help="Price of this machine.  [default: of its GPUs in the catalogue]"),
    click.option("--max-cost", type=USD, metavar="USD",
                 help="Deployment: limit of what the sweep costs in all.  "
                 "[default: 1.5 times the shown cost]"),
    click.option("-o", "--output", type=OutputPath(), metavar="FILE",
                 help="Result, written after each row.  [default: bench-NAME.json]"),
    click.option("--again", is_flag=True, help="Measure again what FILE has."),
    click.option("--save", type=OutputPath("folder"), metavar="CATALOG",
                 help="Write evidence that plans read to the catalogue in this folder."),
    click.option("--report", "report_file", type=OutputPath(), metavar="HTML",
                 help="Write the HTML report."),
)  # fmt: skip


def sweep_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add PAIR, the options of a sweep, and those of planning."""
    for option in reversed(_OPTIONS):
        command = option(command)
    command = planning_options(without=_OWN)(command)
    return click.argument("pair", metavar="PAIR|NAME", shell_complete=complete_pair)(command)


@click.command(
    "sweep",
    cls=PeagleCommand,
    epilog="""\b
Examples:
  peagle bench sweep tiny --sweep k=none,5 --concurrency 1,2
  peagle bench gpt-oss-20b --sweep k=none,3,7 --engine docker --gpus --slo ttft=0.5,itl=0.02
  peagle bench peagle-tiny --sweep k=none,3,5 --sandbox --max-cost 5
""",
)
@sweep_options
@account_options
@yes_option
@json_option
@click.pass_context
def sweep(ctx: click.Context, /, **given: Any) -> None:
    """Measure several settings of PAIR on this machine, one engine after the other.

    With the NAME of a deployment, the endpoint is updated to each setting, proved and measured,
    then restored to its previous plan. Each row is kept in FILE as soon as it is measured; after an
    interrupt or an error the same command continues. The loads at which speculation stops, or
    starts, paying are those of a verdict on the saved evidence.
    """
    request = _request(ctx, given)
    check_outputs(given)
    account: Account = given["account"]
    lossless: SweepLossless | None = None
    if names_deployment(account, None, given["pair"]):
        _refuse_plan_options(ctx)
        if given["lossless"]:
            check = ("peagle", "bench", given["pair"], "--lossless", "--against", "NAME")
            raise UserError(
                "a sweep checks answers of engines on this machine",
                Fix("compare the deployment with one of the target alone", check),
            )
        file, result = _on_endpoint(ctx, given, request, account)
    else:
        if given["max_cost"]:
            raise OptionsConflict("--max-cost applies to a deployment only", "omit it")
        file, result, lossless = _on_this_machine(ctx, given, request)
    write_outputs(ctx, given, file, result, lossless)


def _on_this_machine(
    ctx: click.Context, given: dict[str, Any], request: SweepRequest
) -> tuple[Path, BenchResult, SweepLossless | None]:
    """Measure with engines of this machine."""
    kind, gpus = given["engine_kind"], given["gpus"]
    if gpus and kind != "docker":
        raise OptionMissing("--gpus needs a container", "add --engine docker")
    plan_of = _plans(ctx, given, request)
    base = plan_of(BenchSetting(None, max(request.ks)))
    # Warnings and notes of a plan are about its deployment.
    raise_first_error(api.findings_on_this_machine(base, kind))
    file = given["output"] or Path(f"bench-{base.name}.json")

    # The image of the pair runs its target alone too.
    options = LocalOptions(local_image(base, gpus) if kind == "docker" else None, gpus)
    with StatusLine() as status, _kept(ctx, file, status) as observe:
        catalog, lossless = command_catalog(ctx), None
        if given["lossless"]:
            lossless = api.sweep_lossless(
                catalog,
                base.pair,
                request.workloads,
                lambda server, done, count: status.show(
                    f"greedy answers, {server}", f"{done} of {count} prompts"
                ),
            )
        result = api.sweep_on_this_machine(
            request, file, plan_of, options, catalog, status.show, observe, lossless
        )
    return file, result, lossless


def _on_endpoint(
    ctx: click.Context, given: dict[str, Any], request: SweepRequest, account: Account
) -> tuple[Path, BenchResult]:
    """Measure a deployment, revision by revision, after a confirmation of the price."""
    name = given["pair"]
    if given["save"] and account.sandbox:
        raise UserError(
            "the sandbox has no GPU, so its speeds cannot be evidence",
            "omit --save",
            code="not-evidence",
        )
    record, aws = find_deployment(account, name, given["region"], complete=True)
    file = given["output"] or Path(f"bench-{name}.json")
    with api.deployment_lock(*record.key), DeploymentProgress(account.sandbox) as status:
        prepared = api.sweep_on_endpoint(
            request, file, aws, record, command_catalog(ctx), status.observe
        )
        _show_price(prepared, account, given["max_cost"])
        if not given["yes"]:
            confirm("Update the endpoint to each setting?", "not measured")
        with _kept(ctx, file, status) as observe:
            try:
                return file, prepared.run(given["max_cost"], observe)
            except (PeagleError, KeyboardInterrupt):
                if kept := prepared.plan_to_return_to:
                    back = command_text(("peagle", "deploy", str(kept)), ctx)
                    print_status(
                        f"{name} serves one of the settings. To end with what it was", back
                    )
                raise


def _show_price(prepared: EndpointSweep, account: Account, max_cost: float | None) -> None:
    """What the sweep costs, about."""
    sweep, name = prepared.sweep, prepared.revisions.record.name
    settings, total = len(sweep.settings), sweep.total
    rows = f"{settings} setting{'s' if settings > 1 else ''}, {total} row{'s' if total > 1 else ''}"
    usd = format_usd(prepared.usd) if prepared.usd is not None else "unknown"
    free = " on AWS (free in the sandbox)" if account.sandbox else ""
    limit = prepared.default_limit if max_cost is None else max_cost
    spent = f", of which {format_usd(prepared.spent)} is spent" if prepared.spent else ""
    facts = [
        ("sweep", f"{name}: {rows}, about {format_duration(prepared.seconds)}"),
        ("price", f"the endpoint: {format_price(prepared.usd_per_hour, account.sandbox)}"),
        ("cost", f"of the sweep: about {usd}{free}; during each update the instances of both "
         "revisions are paid"),
    ]  # fmt: skip
    if limit is not None:
        facts.append(("limit", f"{format_usd(limit)} in all{spent}"))
    print_facts(tuple(facts))


def _refuse_plan_options(ctx: click.Context) -> None:
    """Raise UserError for an option of planning: a deployment has its plan."""
    for name in planning_choices(ctx.params, _OWN):
        source = ctx.get_parameter_source(name)
        if source is ParameterSource.COMMANDLINE and name not in _OF_LOADS:
            raise OptionsConflict(
                f"--{name.replace('_', '-')} cannot be combined with a deployment, which has its "
                "plan",
                "omit it, or deploy with it first",
            )


def _request(ctx: click.Context, given: dict[str, Any]) -> SweepRequest:
    """The options as a request."""
    if is_plan_file(given["pair"]):
        raise UserError(
            f"a sweep plans each setting, and {given['pair']} is one plan",
            "specify a pair, and the options of the plan",
        )
    same = ("loads", "prompt_tokens", "output_tokens", "repetitions", "requests",
            "acceptance", "domain", "again")  # fmt: skip
    return SweepRequest(
        **{name: given[name] for name in same},
        settings=given["sweep"],
        workloads=given["workloads"] or ("short-prompt",),
        usd_per_hour=given["price_per_hour"],
        command=typed_command(ctx, *_NAME),
    )


def _plans(
    ctx: click.Context, given: dict[str, Any], request: SweepRequest
) -> Callable[[BenchSetting], Plan]:
    """Makes the plan of a setting: all on the instance type of the one with the largest K, for the
    largest load."""
    chosen = planning_choices(given, _OWN) | {
        "concurrency": max(request.loads),
        "slo": None,
    }
    made: dict[int, Plan] = {}

    def plan_of(setting: BenchSetting) -> Plan:
        k = setting.k
        if k not in made:
            largest = made.get(max(request.ks))
            same = {"instance_type": largest.instance_type, "name": largest.name} if largest else {}
            speculation = {"k": k} if k else {"no_speculation": True}
            made[k] = planned(ctx, given["pair"], {**chosen, **speculation, **same})
        return made[k]

    plan_of(BenchSetting(None, max(request.ks)))
    return plan_of


@contextmanager
def _kept(
    ctx: click.Context, file: Path, status: StatusLine
) -> Iterator[Callable[[SweepProgress], object]]:
    """Shows the progress; an error or an interrupt says what is kept and how to continue."""
    last: list[SweepProgress] = []

    def observe(progress: SweepProgress) -> None:
        is_next = not last or last[-1].done != progress.done
        last[:] = [progress]
        status.show_line(progress.text, at_once=is_next)

    try:
        yield observe
    except (PeagleError, KeyboardInterrupt):
        status.clear()
        if last and last[0].done:
            again = command_text(typed_command(ctx, *_NAME, without=("--again",)), ctx)
            rows = f"{last[0].done} of {last[0].total} rows are in {file}"
            print_status(f"{rows}. To continue", again)
        raise
