"""``peagle bench``: speed, latencies, acceptance and cost of a server under load."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import click

from peagle.bench.acceptance import (
    GROUPS,
    GROUPS_OF_LOG,
    AcceptanceRequest,
    AcceptanceResult,
    acceptance_bytes,
    measure_acceptance,
    require_none_refused,
)
from peagle.bench.aiperf import (
    Aiperf,
    find_sender,
    install_sender,
    installed_sender,
)
from peagle.bench.evidence import priced_result, read_result
from peagle.bench.lossless import LosslessResult, check_lossless, prompts_of_pair, require_lossless
from peagle.bench.measure import bench as measure
from peagle.bench.report import BenchGates, require_gates
from peagle.bench.report import report as report_html
from peagle.bench.result import DEFAULT_MAX_TOKENS, INTERRUPTED, BenchResult
from peagle.bench.targets import (
    KEY_VARIABLE,
    BenchTarget,
    target_alone,
    target_of_endpoint,
    target_of_engine,
    target_of_url,
)
from peagle.bench.workloads import PromptSet, make_loads, read_prompts
from peagle.catalog import find_pair
from peagle.cli.bench_sweep import sweep, with_options
from peagle.cli.context import PeagleCommand
from peagle.cli.options import (
    LOADS,
    TOKENS,
    USD,
    Decimal,
    OutputPath,
    command_catalog,
    objective,
    repetitions_option,
    requests_option,
)
from peagle.cli.project import ProjectCommand, endpoint_argument
from peagle.cli.session import (
    Session,
    cloud_options,
    complete_name,
)
from peagle.cli.view.bench import print_acceptance, print_lossless, print_result
from peagle.cli.view.console import (
    json_option,
    print_json,
    print_small,
    print_status,
    print_written,
)
from peagle.cli.view.progress import StatusLine
from peagle.deploy.invoke import WakeUpOptions
from peagle.engine.state import LocalEngine, local_engines, ready_engine
from peagle.errors import (
    EngineError,
    Fix,
    NotFound,
    OptionMissing,
    OptionsConflict,
    PeagleError,
    UserError,
)
from peagle.speed.slo import parse_slo
from peagle.store import write_output

LOCAL = "local"
"""The target that is the only engine of ``peagle local up``."""

_ABOVE_ZERO = Decimal("a number above 0, such as 500", min=0, min_open=True)

_OPTIONS = (
    click.option("--workload", metavar="NAME|FILE", default="short-prompt", show_default=True,
                 help="short-prompt (128 tokens, answers of 400), long-prompt (2048, 256), "
                 "long-answer (128, 1024), or a file of JSON lines with prompts."),
    click.option("--concurrency", type=LOADS, metavar="N[,N...]", default="8", show_default=True,
                 help="Requests at a time; several loads are measured in turn."),
    repetitions_option,
    requests_option,
    click.option("--prompt-tokens", type=TOKENS, metavar="N", help="Size of the random prompts."),
    click.option("--output-tokens", type=TOKENS, metavar="N", help="Size of the answers."),
    click.option("--model", metavar="ID",
                 help="Model in the requests.  [default: the served one]"),
    click.option("--price-per-hour", type=USD, metavar="USD",
                 help="Price of the server.  [default: the endpoint's, on demand]"),
    click.option("--acceptance", metavar="FILE", type=click.Path(path_type=Path),
                 help="Measure the acceptance on these prompts instead: JSON lines with prompt or "
                 "messages, and optionally domain and max_tokens."),
    click.option("--save-acceptance", metavar="FILE", type=OutputPath(),
                 help="With --acceptance: write the result, for `peagle verdict --acceptance`."),
    click.option("--temperature", default=0.0, show_default=True,
                 type=Decimal("a temperature from 0 to 10, such as 0.7", min=0.0, max=10.0),
                 help="With --acceptance: sampling temperature; 0 is greedy decoding."),
    click.option("--lossless", is_flag=True,
                 help="Check that speculation does not change greedy answers to the prompts of "
                 "--acceptance.  [default: the catalogue's prompts]"),
    click.option("--against", metavar="NAME|URL",
                 help="With --lossless: a server of the target alone.  [default: started on this "
                 "machine]"),
    click.option("--slo", metavar="TIMES", callback=objective,
                 help="Exit with 3 if a mean time is longer: ttft=0.5,itl=0.02, in seconds."),
    click.option("--min-tokens-per-second", type=_ABOVE_ZERO, metavar="N",
                 help="Exit with 3 if a load has fewer output tokens per second."),
    click.option("--max-usd-per-million-tokens", type=USD, metavar="USD",
                 help="Exit with 3 if a million output tokens cost more."),
    click.option("--min-acceptance-length", metavar="N",
                 type=Decimal("an acceptance length of 1 or more, such as 2.2", min=1),
                 help="Exit with 3 if fewer tokens are accepted per step."),
)  # fmt: skip


class _Bench(click.Group):
    """A group whose commands ``run`` and ``sweep`` need no name: ``peagle bench NAME``, and
    ``peagle bench PAIR --sweep k=none,3``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the command unless one, or ``--help``, comes first."""
        if args and args[0] not in (*self.commands, "--help", "-h"):
            sweeps = any(word == "--sweep" or word.startswith("--sweep=") for word in args)
            args = ["sweep" if sweeps else "run", *args]
        return super().parse_args(ctx, args)


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


bench.add_command(sweep)


@bench.command(cls=ProjectCommand, epilog="Example: peagle bench run peagle-tiny --sandbox --json")
@endpoint_argument(complete_name, "NAME|URL|local")
@with_options(_OPTIONS)
@cloud_options
@json_option
@click.pass_context
def run(ctx: click.Context, /, **options: Any) -> None:
    """Measure the endpoint NAME, the server at URL, or the engine of `peagle local up`.

    Requests are sent as fast as they are answered, so many at a time; a warm-up before is not
    counted. Prompts are random words unless --workload is a file. Answers have a fixed length where
    the server accepts ignore_eos. All tokens are counted by the server. A URL's key is read from
    OPENAI_API_KEY. Requests cost what they cost: an endpoint is not stopped afterwards. One that
    scaled to zero is woken first, which may take half an hour, and is not counted.

    With --acceptance or --lossless, no speed is measured; --output-tokens then limits the answers.

    Exits with 4 if requests fail, after printing what was measured before, and with 3 if
    speculation changes an answer, or a load misses a gate (--slo, --min-..., --max-...).
    """

    def find(name: str) -> BenchTarget:
        return find_target(ctx, options["session"], name, options["model"])

    if _measures_text(options):
        _measure_text(find(options["name"]), find, options)
        return
    names = ("repetitions", "requests", "prompt_tokens", "output_tokens")
    loads = make_loads(
        options["workload"], options["concurrency"], *(options[name] for name in names)
    )
    target = find(options["name"])
    sender = find_sender()
    if options["price_per_hour"] is not None:
        target = target.at_price(options["price_per_hour"])
    with StatusLine() as status:
        result = measure(
            target,
            loads,
            sender,
            ["peagle", *sys.argv[1:]],
            lambda load, ended, total: status.show(load, f"{ended} of {total} requests"),
        )
    _print(result, options["as_json"])
    require_gates(result, BenchGates(*(options[name] for name in BenchGates.__dataclass_fields__)))


def _print(result: BenchResult, as_json: bool) -> None:
    """Print the result; raise EngineError, or KeyboardInterrupt, if it ended early."""
    if as_json:
        print_json(result.document())
    else:
        print_result(result)
    if result.incomplete == INTERRUPTED:
        raise KeyboardInterrupt
    if result.incomplete:
        raise EngineError(
            result.incomplete, "the rows above are what was measured before", "load-failed"
        )


def find_target(ctx: click.Context, session: Session, name: str, model: str | None) -> BenchTarget:
    """What to measure: a URL, a local engine, or an endpoint. Options about AWS exclude the first
    two; if an endpoint and a local engine have the same name, the endpoint is measured."""
    if "://" in name:
        return target_of_url(name, model, os.environ.get(KEY_VARIABLE))
    if name == LOCAL:
        return target_of_engine(_only_engine())
    on_aws = session.names_deployment(name)
    if engine := None if on_aws else ready_engine(name):
        return target_of_engine(engine)
    try:
        record, aws = session.find_served(name)
    except NotFound as unknown:
        if on_aws or (fix := _local_fix(ctx, name)) is None:
            raise
        raise NotFound(f"there is no deployment {name!r}", fix, unknown.code) from unknown
    with StatusLine() as line:
        wake_up = WakeUpOptions(on_progress=lambda progress: line.show_line(progress.text))
        return target_of_endpoint(aws, name, record, command_catalog(ctx), model, wake_up)


def _local_fix(ctx: click.Context, name: str) -> Fix | None:
    """What the user of a local engine, or of a pair's name, may have meant; ``None`` without."""
    ready = [engine for engine in local_engines() if engine.state == "ready"]
    for engine in ready:
        target = engine.pair.partition("+")[0]
        if name in (engine.pair, target, target.rpartition("/")[2]):
            sentence = (
                "measure the local engine that runs, or add --sweep k=none,5 to start new ones"
            )
            shown = LOCAL if len(ready) == 1 else engine.name
            return Fix(sentence, ("peagle", "bench", shown))
    with suppress(PeagleError):
        find_pair(command_catalog(ctx), name)
        return Fix(
            "this is the name of a pair: measure the pair on this machine",
            ("peagle", "bench", name, "--sweep", "k=none,5"),
        )
    return None


def _only_engine() -> LocalEngine:
    """The only engine of this machine. Raises NotFound without one, and UserError for several."""
    names = [engine.name for engine in local_engines() if engine.state == "ready"]
    if len(names) > 1:
        raise UserError(
            f"{len(names)} engines are running: {', '.join(names)}",
            "specify only one of them",
            code="several-engines",
        )
    engine = ready_engine(names[0]) if names else None
    if engine is None:
        start = Fix("start one", ("peagle", "local", "up", "PAIR"))
        raise NotFound("no engine of this machine is running", start, code="no-such-engine")
    return engine


def _measures_text(options: dict[str, Any]) -> bool:
    """Whether the command measures a text instead of a load. Raises UserError for an option that
    needs another one."""
    if options["against"] and not options["lossless"]:
        raise OptionsConflict("--against is for the lossless check", "add --lossless")
    if options["save_acceptance"] and not options["acceptance"]:
        raise OptionMissing("--save-acceptance needs acceptance", "add --acceptance FILE")
    return options["acceptance"] is not None or options["lossless"]


def _measure_text(
    target: BenchTarget, find: Callable[[str], BenchTarget], options: dict[str, Any]
) -> None:
    """Measure acceptance, check that nothing is lost, or both; print the results.

    ``find`` finds the server that a NAME or URL means. Raises NotProved if speculation changes an
    answer, UserError if the engine refuses prompts, and what the server raises, after printing what
    was measured until then.
    """
    prompts = _prompts(target, options["acceptance"])
    max_tokens = options["output_tokens"] or DEFAULT_MAX_TOKENS
    groups = GROUPS if target.counted_by == "counters" else GROUPS_OF_LOG
    concurrency = max(options["concurrency"])
    request = AcceptanceRequest(max_tokens, options["temperature"], concurrency, groups)
    acceptance: list[AcceptanceResult] = []
    lossless: list[LosslessResult] = []
    with StatusLine() as status:

        def show(what: str, done: int, count: int) -> None:
            status.show(what, f"{done} of {count} prompts")

        alone = _alone(target, find, options["against"], status) if options["lossless"] else None
        try:
            if options["acceptance"]:
                measured = measure_acceptance(
                    target,
                    prompts,
                    request,
                    keep=acceptance.append,
                    progress=lambda domain, *done: show(f"acceptance, {domain}", *done),
                )
                acceptance.append(measured)
            if alone:
                compared = check_lossless(
                    target,
                    alone,
                    prompts,
                    max_tokens,
                    keep=lossless.append,
                    progress=lambda server, *done: show(f"greedy answers of {server}", *done),
                )
                lossless.append(compared)
        finally:
            _print_text(acceptance, lossless, options["save_acceptance"], options["as_json"])
    for compared in lossless:
        require_lossless(compared)
    for measured in acceptance:
        require_none_refused(measured)


def _print_text(
    acceptance: list[AcceptanceResult],
    lossless: list[LosslessResult],
    file: Path | None,
    as_json: bool,
) -> None:
    """Save and print what was measured, also after an error."""
    if acceptance and file:
        write_output(file, acceptance_bytes(acceptance[0]))
        print_written(file)
    if not as_json:
        for measured in acceptance:
            print_acceptance(measured)
        for compared in lossless:
            print_lossless(compared)
    elif acceptance or lossless:
        print_json(
            {
                "acceptance": acceptance[0].document() if acceptance else None,
                "lossless": lossless[0].document() if lossless else None,
            }
        )


def _prompts(target: BenchTarget, file: Path | None) -> PromptSet:
    """The user's prompts, else the catalogue's for the pair."""
    if file is None:
        return prompts_of_pair(command_catalog(), target.facts.pair)
    prompts = read_prompts(file)
    if prompts.ignored:
        print_status(f"Ignored keys of {prompts.file}: {', '.join(prompts.ignored[:10])}.")
    return prompts


def _alone(
    target: BenchTarget,
    find: Callable[[str], BenchTarget],
    against: str | None,
    status: StatusLine,
) -> AbstractContextManager[BenchTarget]:
    """The target without speculation: the server ``against``, or started on this machine.

    Raises UserError where it cannot be started here.
    """
    if against:
        return nullcontext(find(against))
    engine = ready_engine(target.facts.name) if target.facts.where == "local" else None
    if engine is None:
        raise UserError(
            f"the target of {target.facts.name} cannot be started here without speculation",
            "serve it without speculation, and name that server with --against",
            "needs-against",
        )
    return target_alone(engine, command_catalog(), status.show)


@bench.command(cls=PeagleCommand, epilog="Example: peagle bench report result.json -o report.html")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=OutputPath(),
    metavar="FILE",
    help="The report.  [default: FILE with the ending .html]",
)
@click.option(
    "--slo", metavar="TIMES", help="Longest mean times in seconds, such as ttft=0.5,itl=0.02."
)
@click.option(
    "--price-per-hour",
    type=USD,
    metavar="USD",
    help="Price of the GPUs.  [default: the result's, or the catalogue's]",
)
@json_option
def report(
    file: Path, output: Path | None, slo: str | None, price_per_hour: float | None, as_json: bool
) -> None:
    """Write the HTML report of FILE, a result of bench or evidence with speeds.

    One file with plots and tables, which loads nothing from elsewhere.
    """
    result, intervals = read_result(file)
    result = priced_result(result, command_catalog(), price_per_hour)
    path = output or file.with_suffix(".html")
    content = report_html(result, parse_slo(slo) if slo else None, intervals).encode()
    write_output(path, content)
    if as_json:
        print_json({"report": str(path), "bytes": len(content)})
    else:
        print_written(path)


@bench.command(cls=PeagleCommand, epilog="Example: peagle bench install --again")
@click.option(
    "--python",
    type=click.Path(path_type=Path),
    help="Python to run it, 3.11 to 3.13.  [default: the one that runs peagle]",
)
@click.option("--again", is_flag=True, help="Reinstall.")
@json_option
def install(python: Path | None, again: bool, as_json: bool) -> None:
    """Install the load generator, NVIDIA's aiperf, below $PEAGLE_HOME, from a lock file.

    Needs 270 MB of disk and takes half a minute or more. Every package is checked against its hash.
    """
    present = not again and installed_sender() is not None
    installed = install_sender(python, again, print_status)
    print_small({**_document(installed), "was_installed": present}, as_json)


@bench.command(cls=PeagleCommand, epilog="Example: peagle bench status --json")
@json_option
def status(as_json: bool) -> None:
    """Show the installed load generator."""
    print_small(_document(installed_sender() if as_json else find_sender()), as_json)


def _document(sender: Aiperf | None) -> dict[str, object]:
    return {
        "sender": "aiperf",
        "version": sender.version if sender else None,
        "program": str(sender.program) if sender else None,
        "megabytes": sender.megabytes if sender else None,
        "seconds": sender.seconds if sender else None,
    }
