"""``peagle bench PAIR --sweep``: measure several settings of a pair."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from peagle.bench.evidence import priced_result, save_evidence
from peagle.bench.lossless import LosslessResult, SweepLossless, require_lossless, sweep_lossless
from peagle.bench.report import report, require_report, summaries
from peagle.bench.result import BenchResult, BenchSetting
from peagle.bench.sweep import (
    EndpointSweep,
    SweepProgress,
    SweepRequest,
    sweep_on_this_machine,
)
from peagle.cli.context import PeagleCommand, command_text, is_plan_file, own_command
from peagle.cli.local import local_image
from peagle.cli.options import (
    LOADS,
    USD,
    OneOf,
    OutputPath,
    command_catalog,
    complete_pair,
    raise_first_error,
    repetitions_option,
    requests_option,
    yes_option,
)
from peagle.cli.plan_options import planning_choices, planning_options
from peagle.cli.planned import planned
from peagle.cli.project import Decorator
from peagle.cli.session import Session, account_options
from peagle.cli.view.bench import print_lossless, print_sweep
from peagle.cli.view.console import (
    confirm,
    json_option,
    print_facts,
    print_json,
    print_line,
    print_status,
)
from peagle.cli.view.progress import DeploymentProgress, StatusLine
from peagle.deploy.records import deployment_lock
from peagle.engine.runner import LocalOptions
from peagle.errors import Fix, OptionMissing, OptionsConflict, PeagleError, UserError, command_line
from peagle.images.build import findings_on_this_machine
from peagle.planning import Plan
from peagle.store import write_output
from peagle.text import format_duration, format_price, format_usd

_OWN = (
    "k", "concurrency", "no_speculation", "verdict", "min_tokens_per_second", "max_price_per_hour",
    "workload", "cached_prompt_tokens", "shared_prompt_tokens", "requests", "within",
)  # fmt: skip
"""Planning options that a sweep sets itself, or that say nothing about it."""

_OF_LOADS = ("region", "prompt_tokens", "output_tokens", "slo")
"""Planning options that a sweep of a deployment takes too."""

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


def with_options(options: Sequence[Decorator]) -> Decorator:
    """Add the options to a command, in this order."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


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
@click.argument("pair", metavar="PAIR|NAME", shell_complete=complete_pair)
@planning_options(without=_OWN)
@with_options(_OPTIONS)
@account_options
@yes_option
@json_option
@click.pass_context
def sweep(ctx: click.Context, /, **options: Any) -> None:
    """Measure several settings of PAIR on this machine, one engine after the other.

    With the NAME of a deployment, the endpoint is updated to each setting, proved and measured,
    then restored to its previous plan. Each row is kept in FILE as soon as it is measured; after an
    interrupt or an error the same command continues. The loads at which speculation stops, or
    starts, paying are those of a verdict on the saved evidence.
    """
    request = _request(ctx, options)
    _require_outputs(options)
    session: Session = options["session"]
    lossless: SweepLossless | None = None
    if session.names_deployment(options["pair"]):
        _refuse_plan_options(ctx)
        if options["lossless"]:
            check = ("peagle", "bench", options["pair"], "--lossless", "--against", "NAME")
            raise UserError(
                "a sweep checks answers of engines on this machine",
                Fix("compare the deployment with one of the target alone", check),
            )
        file = options["output"] or Path(f"bench-{options['pair']}.json")
        result = _on_endpoint(ctx, options, request, session, file)
    else:
        if options["max_cost"]:
            raise OptionsConflict("--max-cost applies to a deployment only", "omit it")
        file, result, lossless = _on_this_machine(ctx, options, request)
    _report(ctx, options, file, result, lossless.results if lossless else ())


def _request(ctx: click.Context, options: dict[str, Any]) -> SweepRequest:
    """The options as a request."""
    if is_plan_file(options["pair"]):
        raise UserError(
            f"a sweep plans each setting, and {options['pair']} is one plan",
            "specify a pair, and the options of the plan",
        )
    same = ("loads", "prompt_tokens", "output_tokens", "repetitions", "requests",
            "acceptance", "domain", "again")  # fmt: skip
    return SweepRequest(
        **{name: options[name] for name in same},
        settings=options["sweep"],
        workloads=options["workloads"] or ("short-prompt",),
        usd_per_hour=options["price_per_hour"],
        command=own_command(ctx),
    )


def _require_outputs(options: dict[str, Any]) -> None:
    """Raise UserError, before anything is measured, for a path of --output, --report or --save
    that cannot be written."""
    folders = []
    for flag, path in (("--output", options["output"]), ("--report", options["report_file"])):
        if path is not None and path.is_dir():
            raise UserError(f"{flag} {path} is a folder", "name a file in it", "not-writable")
        folders += [(flag, path, path.parent)] if path is not None else []
    if options["report_file"]:
        require_report()
    if options["save"]:
        folders.append(("--save", options["save"], options["save"] / "evidence"))
    for flag, path, folder in folders:
        existing = next(
            parent for parent in (folder, *folder.parents) if os.access(parent, os.F_OK)
        )
        why = "is not writable" if not os.access(existing, os.W_OK) else ""
        why = why if existing.is_dir() else "is a file"
        if why:
            message = f"{flag} {path} cannot be written: {existing} {why}"
            raise UserError(message, "name another path", "not-writable")


def _on_this_machine(
    ctx: click.Context, options: dict[str, Any], request: SweepRequest
) -> tuple[Path, BenchResult, SweepLossless | None]:
    """Measure with engines of this machine."""
    kind, gpus = options["engine_kind"], options["gpus"]
    if gpus and kind != "docker":
        raise OptionMissing("--gpus needs a container", "add --engine docker")
    plan_of = _plans(ctx, options, request)
    base = plan_of(BenchSetting(None, max(request.ks)))
    # Warnings and notes of a plan are about its deployment.
    raise_first_error(findings_on_this_machine(base, kind))
    file = options["output"] or Path(f"bench-{base.name}.json")

    # The image of the pair runs its target alone too.
    local_options = LocalOptions(local_image(base, gpus) if kind == "docker" else None, gpus)
    with StatusLine() as status, _kept(ctx, file, status) as observe:
        catalog, lossless = command_catalog(ctx), None
        if options["lossless"]:
            lossless = sweep_lossless(
                catalog,
                base.pair,
                request.workloads,
                lambda server, done, count: status.show(
                    f"greedy answers, {server}", f"{done} of {count} prompts"
                ),
            )
        result = sweep_on_this_machine(
            request, file, plan_of, local_options, catalog, status.show, observe, lossless
        )
    return file, result, lossless


def _plans(
    ctx: click.Context, options: dict[str, Any], request: SweepRequest
) -> Callable[[BenchSetting], Plan]:
    """Makes the plan of a setting: all on the instance type of the one with the largest K, for the
    largest load."""
    chosen = planning_choices(options, _OWN) | {"concurrency": max(request.loads), "slo": None}
    made: dict[int, Plan] = {}

    def plan_of(setting: BenchSetting) -> Plan:
        k = setting.k
        if k not in made:
            largest = made.get(max(request.ks))
            same = {"instance_type": largest.instance_type, "name": largest.name} if largest else {}
            speculation = {"k": k} if k else {"no_speculation": True}
            made[k] = planned(ctx, options["pair"], {**chosen, **speculation, **same})
        return made[k]

    plan_of(BenchSetting(None, max(request.ks)))
    return plan_of


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


def _on_endpoint(
    ctx: click.Context, options: dict[str, Any], request: SweepRequest, session: Session, file: Path
) -> BenchResult:
    """Measure a deployment, revision by revision, after a confirmation of the price."""
    name = options["pair"]
    if options["save"] and session.sandbox:
        raise UserError(
            "the sandbox has no GPU, so its speeds cannot be evidence",
            "omit --save",
            code="not-evidence",
        )
    record, aws = session.find(name, options["region"], complete=True)
    with deployment_lock(*record.key), DeploymentProgress(session.sandbox) as status:
        prepared = EndpointSweep(request, file, aws, record, command_catalog(ctx), status.observe)
        print_facts(_price_facts(prepared, session, options["max_cost"]))
        if not options["yes"]:
            confirm("Update the endpoint to each setting?", "not measured")
        with _kept(ctx, file, status) as observe:
            try:
                return prepared.run(options["max_cost"], observe)
            except (PeagleError, KeyboardInterrupt):
                if kept := prepared.plan_to_return_to:
                    back = command_text(("peagle", "deploy", str(kept)), ctx)
                    print_status(
                        f"{name} serves one of the settings. To end with what it was", back
                    )
                raise


def _price_facts(
    prepared: EndpointSweep, session: Session, max_cost: float | None
) -> Iterator[tuple[str, str]]:
    """What the sweep costs, about."""
    settings, total = len(prepared.sweep.settings), prepared.sweep.total
    rows = f"{settings} setting{'s' if settings > 1 else ''}, {total} row{'s' if total > 1 else ''}"
    yield "sweep", f"{prepared.record.name}: {rows}, about {format_duration(prepared.seconds)}"
    yield "price", f"the endpoint: {format_price(prepared.usd_per_hour, session.sandbox)}"
    usd = format_usd(prepared.usd) if prepared.usd is not None else "unknown"
    free = " on AWS (free in the sandbox)" if session.sandbox else ""
    yield (
        "cost",
        f"of the sweep: about {usd}{free}; during each update the instances of both revisions "
        "are paid",
    )
    limit = prepared.default_limit if max_cost is None else max_cost
    if limit is not None:
        spent = f", of which {format_usd(prepared.spent)} is spent" if prepared.spent else ""
        yield "limit", f"{format_usd(limit)} in all{spent}"


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
            again = command_line(own_command(ctx, without=("--again",)))
            rows = f"{last[0].done} of {last[0].total} rows are in {file}"
            print_status(f"{rows}. To continue", again)
        raise


def _report(
    ctx: click.Context,
    options: dict[str, Any],
    file: Path,
    result: BenchResult,
    compared: Sequence[LosslessResult],
) -> None:
    """Print the result, and write evidence and report as asked. Raises UserError for a file that
    cannot be written, and NotProved for a setting that changes an answer; the result is printed in
    any case, and before anything is written, so that a failure there hides no measurement."""
    result = priced_result(result, command_catalog(ctx))
    lines, as_json = summaries(result, options["slo"]), options["as_json"]
    if not as_json:
        print_sweep(result, lines)
        print_line(f"Result:   {file}")
    written: dict[str, str | None] = {"file": str(file), "report": None, "evidence": None}
    try:
        _write(options, result, written)
    finally:
        if as_json:
            lossless = [answers.document() for answers in compared]
            print_json({**result.document(), "summary": lines, **written, "lossless": lossless})
    if not as_json:
        if written["evidence"]:
            print_line(f"Evidence: {written['evidence']}")
            pair = result.server.pair or options["pair"]
            plan = ("peagle", "--catalog", str(options["save"]), "plan", pair)
            print_line("Plan with it", command_text(plan, ctx))
        if written["report"]:
            print_line(f"Report:   {written['report']}")
        for answers in compared:
            print_lossless(answers)
    for answers in compared:
        require_lossless(answers)


def _write(options: dict[str, Any], result: BenchResult, written: dict[str, str | None]) -> None:
    """Write report and evidence as asked; ``written`` gets the path of each that is written."""
    html, folder = options["report_file"], options["save"]
    try:
        if html:
            html.parent.mkdir(parents=True, exist_ok=True)
            write_output(html, report(result, options["slo"]).encode())
            written["report"] = str(html)
        if folder:
            written["evidence"] = str(save_evidence(result, folder))
    except OSError as error:
        path = html if html and not written["report"] else folder
        message = f"{path} cannot be written: {error.strerror}"
        raise UserError(message, "check the path", "not-writable") from error
