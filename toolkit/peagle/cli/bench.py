"""``peagle bench``: speed, latencies, acceptance and cost of a server under load, and ``--sweep``:
of several settings of a pair."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from peagle.bench import targets
from peagle.bench.acceptance import (
    FEW_GROUPS,
    GROUPS,
    AcceptanceRequest,
    AcceptanceResult,
    acceptance_bytes,
    measure_acceptance,
    require_none_refused,
    unusable_reason,
)
from peagle.bench.evidence import evidence_document, read_result, save_evidence
from peagle.bench.load import Aiperf, find_sender, sender_installation
from peagle.bench.load import bench as measure
from peagle.bench.lossless import (
    LosslessResult,
    SweepLossless,
    check_lossless,
    find_prompts,
    require_lossless,
)
from peagle.bench.result import DEFAULT_MAX_TOKENS, INTERRUPTED, BenchResult, BenchSetting
from peagle.bench.sweep import (
    EndpointSweep,
    SweepProgress,
    SweepRequest,
    parse_imposed,
    parse_ks,
    sweep_on_this_machine,
)
from peagle.bench.targets import BenchTarget
from peagle.bench.winners import BenchGates, require_gates
from peagle.bench.workloads import WORDS, largest_request, make_loads, read_prompts
from peagle.cli import view
from peagle.cli.context import command_text, typed_command, typed_flag
from peagle.cli.local import local_image, with_weights_here
from peagle.cli.options import (
    PLAN_FIELDS,
    DefaultGroup,
    Parsed,
    add_options,
    command,
    command_catalog,
    complete_pair,
    here_option,
    is_here,
    option,
    yes_option,
)
from peagle.cli.plan_options import planned, planning_options
from peagle.cli.session import Session, account_options, deployment_command
from peagle.cli.view.bench import (
    print_lossless,
    print_measured,
    print_sweep,
    print_sweep_price,
    print_text_results,
    progress_text,
    require_report,
    summaries,
)
from peagle.cli.view.bench import report as report_html
from peagle.deploy.apply import deploy as apply_plan
from peagle.deploy.invoke import WakeUpOptions
from peagle.deploy.state import Deployment
from peagle.engine.dummy import dummy_variables, with_dummy_weights
from peagle.engine.runner import LocalRunner
from peagle.engine.state import ready_engine
from peagle.errors import (
    EngineError,
    Fix,
    OptionMissing,
    OptionsConflict,
    PeagleError,
    UserError,
    command_line,
)
from peagle.findings import refuse_errors
from peagle.images.build import findings_on_this_machine
from peagle.planning import Plan
from peagle.store import write_output
from peagle.text import plain
from peagle.vllm.defaults import BLOCK_TOKENS
from peagle.workload import Slo

_WORKLOAD_HELP = (
    "short-prompt (128 tokens, answers of 400), long-prompt (2048, 256), long-answer (128, 1024); "
    "with a cached prefix: conversation (6912, 256), chat, agent, rag, batch as in plan --help; "
    "or a file of JSON lines with prompts"
)

_LOAD_OPTIONS = (
    option("--repetitions", "Repetitions of each load, for the intervals.", click.IntRange(1, 50),
           default=3),
    option("--requests N", "Requests of each repetition.  [default: twice the concurrency, at "
           "least 4]", "requests"),
    option("--turns N", "Turns of each conversation (--workload chat, agent, conversation); the "
           "first is not measured.  [default: 3]", click.IntRange(2, 100)),
    option("--think-time think_seconds SECONDS", "Time between an answer and the next turn.",
           "positive"),
)  # fmt: skip


class _Bench(DefaultGroup):
    """A group whose commands ``run`` and ``sweep`` need no name, as in ``peagle bench NAME``."""

    def choose_default(self, args: Sequence[str]) -> str:
        """``sweep`` with --sweep."""
        sweeps = any(word == "--sweep" or word.startswith("--sweep=") for word in args)
        return "sweep" if sweeps else "run"


@click.group(
    cls=_Bench,
    epilog="""\b
Examples:
  peagle bench install
  peagle bench peagle-tiny --sandbox
  peagle bench http://127.0.0.1:8000/v1 --concurrency 1,8,32 --workload long-prompt
  peagle bench local --workload prompts.jsonl --json
  peagle bench local --acceptance prompts.jsonl --lossless
  peagle bench tiny --sweep k=none,5 --concurrency 1,2 --report report.html
""",
)
def bench() -> None:
    """Measure speed, latencies, acceptance and cost of a server under load.

    `peagle bench NAME` is short for `peagle bench run NAME`, and with --sweep for `peagle bench
    sweep`.
    """


@deployment_command(
    "peagle bench run peagle-tiny --sandbox --json", metavar="NAME|URL|local", of=bench
)
@add_options(_LOAD_OPTIONS)
@option("--workload NAME|FILE", _WORKLOAD_HELP + ".", default="short-prompt")
@option("--concurrency", "Requests at a time; several loads are measured in turn.",
        "loads", default="8")  # fmt: skip
@option("--prompt-tokens N", "Size of the random prompts.", "tokens")
@option("--output-tokens N", "Size of the answers.", "tokens")
@option("--model ID", "Model in the requests.  [default: the served one]")
@option("--price-per-hour", "Price of the server.  [default: the endpoint's, on demand]", "usd")
@option("--acceptance FILE", "Measure the acceptance on these prompts instead: JSON lines "
        "with prompt or messages, and optionally domain and max_tokens.", "path")  # fmt: skip
@option("--save-acceptance FILE", "With --acceptance: write the result, for `peagle verdict "
        "--acceptance`.", "path", needs="--acceptance FILE")  # fmt: skip
@option("--temperature", "With --acceptance: sampling temperature; 0 is greedy decoding.",
        click.FloatRange(min=0, max=10), default=0.0)  # fmt: skip
@option("--lossless", "Check that speculation does not change greedy answers to the prompts "
        "of --acceptance.  [default: the catalogue's prompts]", bool)  # fmt: skip
@option("--against NAME|URL", "With --lossless: a server of the target alone.  [default: "
        "started on this machine]", needs="--lossless")  # fmt: skip
@option("--slo", "Exit with 3 if a mean time is longer: ttft=0.5,itl=0.02, in seconds.", "slo")
@option("--min-tokens-per-second", "Exit with 3 if a load has fewer output tokens per "
        "second.", "speed")  # fmt: skip
@option("--max-usd-per-million-tokens", "Exit with 3 if a million output tokens cost more.", "usd")
@option("--min-acceptance-length N", "Exit with 3 if fewer tokens are accepted per step.",
        click.FloatRange(min=1))  # fmt: skip
def run(**options: Any) -> None:
    """Measure the endpoint NAME, the server at URL, or the engine of `peagle local up`.

    After a warm-up, --concurrency requests run at a time; each answer starts the next. Prompts are
    random words unless --workload is a file. Answers have a fixed length where the server accepts
    ignore_eos. A URL's key is read from OPENAI_API_KEY. An endpoint is not stopped afterwards; one
    that scaled to zero is woken first. The first turn of a conversation is not counted.

    With --acceptance or --lossless, no speed is measured; --output-tokens then limits the answers.

    Exits with 4 if requests fail, after printing what was measured before, and with 3 if
    speculation changes an answer, or a load misses a gate (--slo, --min-..., --max-...).
    """
    find = partial(find_target, options["session"], model=options["model"])
    if options["acceptance"] is not None or options["lossless"]:
        _measure_text(find(options["name"]), find, options)
        return
    loads = make_loads(options["workload"], options["concurrency"], *_sizes(options))
    target = find(options["name"])
    sender = find_sender()
    if options["price_per_hour"] is not None:
        target = replace(target, usd_per_hour=options["price_per_hour"], price_source="as given")
    with view.StatusLine() as status:
        result = measure(
            target,
            loads,
            sender,
            ["peagle", *sys.argv[1:]],
            lambda load, ended, total: status.show(load, f"{ended} of {total} requests"),
        )
    view.print_result(result, print_measured)
    if result.incomplete == INTERRUPTED:
        raise KeyboardInterrupt
    if result.incomplete:
        fix = "the rows above are what was measured before"
        raise EngineError(result.incomplete, fix, "load-failed")
    require_gates(result, BenchGates(*(options[name] for name in BenchGates.__dataclass_fields__)))


def _sizes(options: dict[str, Any]) -> tuple[Any, ...]:
    names = ("repetitions", "requests", "prompt_tokens", "output_tokens", "turns")
    return *(options[name] for name in names), options["think_seconds"] or 0.0


def find_target(session: Session, name: str, model: str | None) -> BenchTarget:
    """What to measure: a URL, a local engine, or an endpoint. Options about AWS exclude the first
    two; if an endpoint and a local engine have the same name, the endpoint is measured."""
    if ":" in name:  # in no name of an endpoint
        return targets.open_url(name, model, os.environ.get(targets.KEY_VARIABLE))
    engine = session.local_engine(name)
    if engine is not None:
        return targets.open_engine(engine, session.catalog)
    record, aws = session.find_served(name)
    with view.StatusLine() as line:
        wake_up = WakeUpOptions(on_progress=line.show_line)
        return targets.open_endpoint(aws, name, record, session.catalog, model, wake_up)


def _measure_text(
    target: BenchTarget, find: Callable[[str], BenchTarget], options: dict[str, Any]
) -> None:
    """Measure acceptance, check that nothing is lost, or both; print what was measured, also before
    an error. ``find`` finds the server that a NAME or URL means."""
    file, alone = options["acceptance"], None
    prompts = read_prompts(file) if file else find_prompts(command_catalog(), target.facts.pair)
    max_tokens = options["output_tokens"] or DEFAULT_MAX_TOKENS
    groups = GROUPS if target.counted_by == "counters" else FEW_GROUPS
    concurrency = max(options["concurrency"])
    request = AcceptanceRequest(max_tokens, options["temperature"], concurrency, groups)
    acceptance: AcceptanceResult | None = None
    lossless: LosslessResult | None = None
    with view.StatusLine() as status:

        def show(what: str, done: int, count: int) -> None:
            status.show(what, f"{done} of {count} prompts")

        if options["lossless"]:
            alone = _target_alone(target, find, options["against"], status)
        try:
            if file:
                acceptance = measure_acceptance(
                    target, prompts, request, progress=lambda _, *done: show("acceptance", *done),
                )  # fmt: skip
            if alone:
                lossless = check_lossless(
                    target, alone, prompts, max_tokens,
                    lambda server, *done: show(f"greedy answers of {server}", *done),
                )  # fmt: skip
        finally:  # also after an error
            if acceptance and options["save_acceptance"]:
                write_output(options["save_acceptance"], acceptance_bytes(acceptance))
                view.print_written(options["save_acceptance"])
                if why := unusable_reason(acceptance, acceptance.total):
                    view.print_status(f"peagle verdict cannot use this file: {why}")
            if acceptance or lossless:
                view.print_result(
                    {"acceptance": acceptance, "lossless": lossless}, print_text_results
                )
    if lossless:
        require_lossless(lossless)
    if acceptance:
        require_none_refused(acceptance)


def _target_alone(
    target: BenchTarget,
    find: Callable[[str], BenchTarget],
    against: str | None,
    status: view.StatusLine,
) -> AbstractContextManager[BenchTarget]:
    """The target without speculation: the server ``against``, or started on this machine."""
    if against:
        alone = find(against)
        if alone.server.base_url == target.server.base_url:
            message = f"--against {against} names the server that is compared"
            raise UserError(message, "name a server of the target alone", "needs-against")
        return nullcontext(alone)
    engine = ready_engine(target.facts.name) if target.facts.where == "local" else None
    if engine is None or engine.image is not None:
        message = f"the target of {target.facts.name} cannot be started here without speculation"
        fix = "serve it without speculation, and name that server with --against"
        raise UserError(message, fix, "needs-against")
    return targets.target_alone(engine, command_catalog(), status.show)


_NOT_OF_SWEEP = {
    "cached_prompt_tokens", "concurrency", "k", "max_price_per_hour", "min_tokens_per_second",
    "no_speculation", "pair", "requests", "shared_prompt_tokens", "verdict", "within", "workload",
}  # fmt: skip
"""Planning options that a sweep sets itself, or that say nothing about it."""

_OF_LOADS = {"region", "prompt_tokens", "output_tokens", "slo"}
"""Planning options that a sweep of a deployment takes too."""


@command(
    "peagle bench sweep tiny --sweep k=none,5 --concurrency 1,2",
    "peagle bench gpt-oss-20b --sweep k=none,3,7 --engine docker --gpus --slo ttft=0.5,itl=0.02",
    "peagle bench peagle-tiny --sweep k=none,3,5 --sandbox --max-cost 5",
    name="sweep",
    of=bench,
)
@click.argument("pair", metavar="PAIR|NAME", shell_complete=complete_pair)
@planning_options(without=_NOT_OF_SWEEP)
@add_options(_LOAD_OPTIONS)
@option("--sweep k=LIST", "K of each setting, and none for no speculation: k=none,1,3,5.",
        required=True)  # fmt: skip
@option("--concurrency loads", "Requests at a time; several loads are measured in "
        "turn.", "loads", default="1,8,32")  # fmt: skip
@option("--workload workloads NAME|FILE", _WORKLOAD_HELP + "; repeatable.  [default: "
        "short-prompt]", multiple=True)  # fmt: skip
@option("--engine engine_kind", "Run the engines as processes or in containers.",
        ("process", "docker"), default="process")  # fmt: skip
@option("--gpus", "Docker: use the GPU image and all GPUs.", bool, needs="--engine docker")
@option("--impose-acceptance acceptance FILE|published|LENGTH", "GPU: impose the acceptance in "
        "FILE, a result of bench --acceptance, the one that the catalogue quotes, or this "
        "mean length.", Parsed("path", parse_imposed))  # fmt: skip
@option("--dummy-weights", "Measure random weights, made from the config.json files of PAIR.", bool)
@option("--domain", "With --impose-acceptance: of this domain only.")
@option("--lossless", "Check that speculation changes no greedy answer to the prompts of the "
        "workload's file, else the catalogue's.", bool)  # fmt: skip
@option("--price-per-hour", "Price of this machine.", "usd")
@option("--max-cost", "Deployment: limit of what the sweep costs in all.  [default: 1.5 "
        "times the shown cost]", "usd")  # fmt: skip
@option("-o --output FILE", "Result, written after each row.  [default: bench-NAME.json]", "path")
@option("--again", "Measure again what FILE has.", bool)
@option("--save CATALOG", "Write evidence that plans read to the catalogue in this folder.", "path")
@option("--report report_file HTML", "Write the HTML report.", "path")
@partial(here_option, hidden=False)
@account_options
@yes_option
@click.pass_context
def sweep(ctx: click.Context, /, **options: Any) -> None:
    """Measure several settings of PAIR on this machine, one engine after the other.

    With the NAME of a deployment, the endpoint is updated to each setting, proved and measured,
    then restored to its previous plan. Each row is kept in FILE as soon as it is measured; after an
    interrupt or an error the same command continues. The loads at which speculation stops, or
    starts, paying are those of a verdict on the saved evidence.
    """
    name, session = options["pair"], options["session"]
    workloads = tuple(dict.fromkeys(options["workloads"] or ("short-prompt",)))
    loads = (make_loads(workload, options["loads"], *_sizes(options)) for workload in workloads)
    request = SweepRequest(
        parse_ks(options["sweep"]),
        tuple(load for of_workload in loads for load in of_workload),
        **{key: options[key] for key in ("acceptance", "domain", "again")},
        usd_per_hour=options["price_per_hour"],
        command=typed_command(),
    )
    if options["save"] and options["think_seconds"]:
        message = "evidence requires requests without pauses; --think-time adds pauses"
        raise OptionsConflict(message, "omit --save, or --think-time")
    if options["report_file"]:
        require_report()
    planning = {key: options[key] for key in (PLAN_FIELDS & options.keys()) - _NOT_OF_SWEEP}
    lossless: SweepLossless | None = None
    if not session.names_deployment(name):
        file, result, lossless = _on_this_machine(ctx, options, planning, request, workloads)
    else:
        if flag := typed_flag(ctx, planning.keys() - _OF_LOADS):
            message = f"{flag} cannot be combined with a deployment, which has its plan"
            raise OptionsConflict(message, "omit it, or deploy with it first")
        if options["lossless"]:
            check = ("peagle", "bench", name, "--lossless", "--against", "NAME")
            fix = Fix("compare the deployment with one of the target alone", check)
            raise UserError("a sweep checks answers of engines on this machine", fix)
        file = options["output"] or Path(f"bench-{name}.json")
        result = _on_endpoint(options, request, session, file)
    _report(options, file, result, lossless.results if lossless else ())


def _on_this_machine(
    ctx: click.Context,
    options: dict[str, Any],
    planning: dict[str, Any],
    request: SweepRequest,
    workloads: Sequence[str],
) -> tuple[Path, BenchResult, SweepLossless | None]:
    kind, gpus = options["engine_kind"], options["gpus"]
    chosen = planning | {"concurrency": max(options["loads"]), "slo": None}
    chosen |= largest_request([load.workload for load in request.loads])
    plans: dict[int, Plan] = {}

    def plan_of(setting: BenchSetting) -> Plan:
        """All on the instance type of the one with the largest K, for the largest load."""
        k = setting.k
        if k not in plans:
            base = plans.get(max(request.ks))
            same = {"instance_type": base.instance_type, "name": base.name} if base else {}
            speculation = {"k": k} if k else {"no_speculation": True, "drafter": None}
            plan = planned(ctx, options["pair"], {**chosen, **speculation, **same})
            if options["dummy_weights"]:
                plan = with_dummy_weights(plan, command_catalog(ctx), WORDS)
            plans[k] = plan
        return plans[k]

    base = plan_of(BenchSetting(None, max(request.ks)))
    # Warnings and notes of a plan are about its deployment.
    refuse_errors(findings_on_this_machine(base, kind))
    file = options["output"] or Path(f"bench-{base.name}.json")
    # The image of the pair runs its target alone too.
    image = local_image(base, gpus) if kind == "docker" else None
    runner = LocalRunner(image, gpus or is_here(ctx))
    if options["dummy_weights"]:
        if image is not None:
            raise OptionsConflict("--dummy-weights is for a process", "omit --engine docker")
        if any(request.ks) and request.acceptance is None:
            raise OptionMissing("--dummy-weights accepts no draft", "add --impose-acceptance")
        runner = replace(runner, variables=dummy_variables(base, command_catalog()))
    with view.StatusLine() as status, _kept(file, status) as observe:
        catalog, lossless = command_catalog(), None
        if options["lossless"]:
            lossless = SweepLossless(
                catalog, base.pair, workloads,
                lambda server, done, count: status.show(server, f"{done} of {count} answers"),
            )  # fmt: skip

        def local_plan_of(setting: BenchSetting) -> Plan:
            return with_weights_here(plan_of(setting), status) if runner.gpus else plan_of(setting)

        result = sweep_on_this_machine(
            request, file, local_plan_of, runner, catalog, status.show, observe, lossless
        )
    return file, result, lossless


def _on_endpoint(
    options: dict[str, Any], request: SweepRequest, session: Session, file: Path
) -> BenchResult:
    name = options["pair"]
    if options["save"] and session.sandbox:
        message = "the sandbox has no GPU, so its speeds cannot be evidence"
        raise UserError(message, "omit --save", code="not-evidence")
    with session.changing(name, options["region"]) as change, view.StatusLine() as status:

        def deploy(plan: Plan) -> Deployment:
            preflight = change.prepare(plan, accept_unknown_price=True)
            return change.run(apply_plan, preflight, continues=False)

        prepared = EndpointSweep(request, file, change.aws, change.record, session.catalog, deploy)
        print_sweep_price(prepared, session.sandbox, options["max_cost"])
        view.confirm("Update the endpoint to each setting?", "not measured")
        with _kept(file, status) as observe:
            try:
                return prepared.run(options["max_cost"], observe)
            except (PeagleError, KeyboardInterrupt):
                if kept := prepared.plan_to_return_to:
                    back = command_text(("peagle", "deploy", str(kept)))
                    view.print_status(
                        f"{name} serves one of the settings. To end with what it was", back
                    )
                raise


@contextmanager
def _kept(file: Path, status: view.StatusLine) -> Iterator[Callable[[SweepProgress], object]]:
    """Shows the progress; an error or an interrupt says what is kept and how to continue."""
    last: list[SweepProgress] = []

    def observe(progress: SweepProgress) -> None:
        is_next = not last or last[-1].done != progress.done
        last[:] = [progress]
        status.show_line(progress_text(progress), at_once=is_next)

    try:
        yield observe
    except (PeagleError, KeyboardInterrupt):
        status.clear()
        if last and last[0].done:
            again = command_line(typed_command(without=("--again",)))
            rows = f"{last[0].done} of {last[0].total} rows are in {file}"
            view.print_status(f"{rows}. To continue", again)
        raise


def _report(
    options: dict[str, Any], file: Path, result: BenchResult, compared: Sequence[LosslessResult]
) -> None:
    """Print the result before anything is written, so that a failure there hides no measurement;
    then write evidence and report. Raises NotProved for a setting that changes an answer."""
    lines = summaries(result, options["slo"])
    print_sweep(result, lines)
    view.print_line(f"Result:   {file}")
    written: dict[str, str | None] = {"file": str(file), "report": None, "evidence": None}
    try:
        if html := options["report_file"]:
            html.parent.mkdir(parents=True, exist_ok=True)
            write_output(html, report_html(result, options["slo"]).encode())
            written["report"] = str(html)
        if options["save"]:
            written["evidence"] = str(save_evidence(result, options["save"]))
    finally:
        view.print_json({**plain(result), "summary": lines, **written, "lossless": compared})
    for key in ("evidence", "report"):
        if written[key]:
            view.print_line(f"{f'{key.capitalize()}:':<10}{written[key]}")
    if written["evidence"]:
        view.print_line("Plan with it", command_text((*_plan_with(result, options),)))
    for answers in compared:
        print_lossless(answers)
    for answers in compared:
        require_lossless(answers)


def _plan_with(result: BenchResult, options: dict[str, Any]) -> Iterator[str]:
    """The command whose plan has the largest load, in the sizes of the evidence, so that K comes
    from these rows."""
    server, speeds = result.server, evidence_document(result)["speeds"]
    speed = max(speeds, key=lambda speed: int(speed["concurrency"]))
    yield from ("peagle", "--catalog", str(options["save"]), "plan", server.pair or options["pair"])
    if server.where == "local" and server.gpu:
        yield "--here"
    # A block or two of the cache have the chat template, which is no prefix that a user states.
    least = {"cached_prompt_tokens": 2 * BLOCK_TOKENS}
    for name in ("concurrency", "prompt_tokens", "output_tokens", "cached_prompt_tokens"):
        if speed[name] > least.get(name, 0):
            yield from (f"--{name.replace('_', '-')}", f"{speed[name]}")


@command("peagle bench report result.json -o report.html", of=bench)
@click.argument("file", type=click.Path(path_type=Path))
@option("-o --output FILE", "The report.  [default: FILE with the ending .html]", "path")
@option("--slo", "Longest mean times in seconds, such as ttft=0.5,itl=0.02.", "slo")
@option("--price-per-hour", "Price of the server.  [default: the result's]", "usd")
def report(file: Path, output: Path | None, slo: Slo | None, price_per_hour: float | None) -> None:
    """Write the HTML report of FILE, a result of bench.

    One file with plots and tables, which loads nothing from elsewhere.
    """
    result = read_result(file)
    if price_per_hour is not None:
        result = result.at_price(price_per_hour, "given")
    path = output or file.with_suffix(".html")
    content = report_html(result, slo).encode()
    write_output(path, content)
    document = {"report": str(path), "bytes": len(content)}
    view.print_result(document, lambda _: view.print_written(path))


@command("peagle bench install --again", of=bench)
@option("--python", "Python to run it, 3.11 to 3.13.  [default: the one that runs peagle]", "path")
@option("--again", "Reinstall.", bool)
def install(python: Path | None, again: bool) -> None:
    """Install the load generator, NVIDIA's aiperf, below $PEAGLE_HOME, from a lock file.

    Needs 270 MB of disk and takes half a minute or more. Every package is checked against its hash.
    """
    installation = sender_installation()
    present = not again and installation.is_complete()
    installation.install(python, view.print_status, again=again)
    view.print_result({"sender": "aiperf", **plain(find_sender()), "was_installed": present})


@command("peagle bench status --json", of=bench)
def status() -> None:
    """Show the installed load generator."""
    unknown: dict[str, Any] = dict.fromkeys(Aiperf.__dataclass_fields__)
    is_there = sender_installation().is_complete() or not view.wants_json()
    view.print_result({"sender": "aiperf", **(plain(find_sender()) if is_there else unknown)})
