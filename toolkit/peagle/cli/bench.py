"""``peagle bench``: speed, latencies, acceptance and cost of a server under load."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from peagle import api
from peagle.bench.aiperf import (
    Installation,
    find_sender,
    install_sender,
    installed_sender,
    load_sender,
)
from peagle.bench.compare import BenchGates, require_gates
from peagle.bench.evidence import priced_result, read_result
from peagle.bench.measure import BenchTarget, bench_loads
from peagle.bench.measure import bench as measure
from peagle.bench.report import report as report_html
from peagle.bench.result import INTERRUPTED, BenchResult
from peagle.bench.server import KEY_VARIABLE
from peagle.bench.targets import target_of_endpoint, target_of_engine, target_of_url
from peagle.cli.account import (
    Account,
    cloud_options,
    complete_name,
    find_endpoint,
    names_deployment,
)
from peagle.cli.bench_sweep import sweep, with_options
from peagle.cli.bench_text import TEXT_OPTIONS, measure_text, measures_text
from peagle.cli.context import PeagleCommand
from peagle.cli.options import command_catalog, repetitions_option, requests_option
from peagle.cli.output.bench import print_result
from peagle.cli.output.console import (
    json_option,
    print_json,
    print_line,
    print_status,
    print_written,
)
from peagle.cli.output.progress import StatusLine
from peagle.cli.parameter_types import LOADS, TOKENS, USD, Decimal, OutputPath, objective
from peagle.cli.project import ProjectCommand, endpoint_argument
from peagle.engine.state import LocalEngine
from peagle.errors import EngineError, Fix, NotFound, PeagleError, UserError
from peagle.speed.slo import parse_slo
from peagle.store import write_output
from peagle.text import format_size

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
    *TEXT_OPTIONS,
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
            sweeps = any(one == "--sweep" or one.startswith("--sweep=") for one in args)
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
def run(ctx: click.Context, /, **given: Any) -> None:
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
        return find_target(ctx, given["account"], name, given["region"], given["model"])

    if measures_text(given):
        measure_text(find(given["name"]), find, given)
        return
    names = ("repetitions", "requests", "prompt_tokens", "output_tokens")
    loads = bench_loads(given["workload"], given["concurrency"], *(given[name] for name in names))
    target = find(given["name"])
    sender = load_sender()
    if given["price_per_hour"] is not None:
        target = target.at_price(given["price_per_hour"])
    with StatusLine() as status:
        result = measure(
            target,
            loads,
            sender,
            ["peagle", *sys.argv[1:]],
            lambda load, ended, total: status.show(load, f"{ended} of {total} requests"),
        )
    _print(result, given["as_json"])
    require_gates(result, BenchGates(*(given[name] for name in BenchGates.__dataclass_fields__)))


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


def find_target(
    ctx: click.Context, account: Account, name: str, region: str | None, model: str | None
) -> BenchTarget:
    """What to measure: a URL, a local engine, or an endpoint. Options about AWS exclude the first
    two; if an endpoint and a local engine have the same name, the endpoint is measured."""
    if "://" in name:
        return target_of_url(name, model, os.environ.get(KEY_VARIABLE))
    if name == LOCAL:
        return target_of_engine(_only_engine())
    on_aws = names_deployment(account, region, name)
    if engine := None if on_aws else api.ready_engine(name):
        return target_of_engine(engine)
    try:
        record, aws = find_endpoint(account, name, region)
    except NotFound as unknown:
        if on_aws or (fix := _local_fix(ctx, name)) is None:
            raise
        raise NotFound(f"there is no deployment {name!r}", fix, unknown.code) from unknown
    with StatusLine() as line:
        wake_up = api.WakeUpOptions(on_progress=lambda progress: line.show_line(progress.text))
        return target_of_endpoint(aws, name, record, command_catalog(ctx), model, wake_up)


def _local_fix(ctx: click.Context, name: str) -> Fix | None:
    """What the user of a local engine, or of a pair's name, may have meant; ``None`` without."""
    ready = [engine for engine in api.local_engines() if engine.state == "ready"]
    for engine in ready:
        target = engine.pair.partition("+")[0]
        if name in (engine.pair, target, target.rpartition("/")[2]):
            sentence = (
                "measure the local engine that runs, or add --sweep k=none,5 to start new ones"
            )
            shown = LOCAL if len(ready) == 1 else engine.name
            return Fix(sentence, ("peagle", "bench", shown))
    with suppress(PeagleError):
        api.find_pair(command_catalog(ctx), name)
        return Fix(
            "this is the name of a pair: measure the pair on this machine",
            ("peagle", "bench", name, "--sweep", "k=none,5"),
        )
    return None


def _only_engine() -> LocalEngine:
    """The only engine of this machine. Raises NotFound without one, and UserError for several."""
    names = [engine.name for engine in api.local_engines() if engine.state == "ready"]
    if len(names) > 1:
        raise UserError(
            f"{len(names)} engines are running: {', '.join(names)}",
            "specify only one of them",
            code="several-engines",
        )
    engine = api.ready_engine(names[0]) if names else None
    if engine is None:
        start = Fix("start one", ("peagle", "local", "up", "PAIR"))
        raise NotFound("no engine of this machine is running", start, code="no-such-engine")
    return engine


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
    if as_json:
        print_json({**_document(installed), "was_installed": present})
        return
    state = "is already installed" if present else f"is installed in {installed.seconds:.0f} s"
    size = format_size(installed.megabytes * 1e6)
    print_line(f"aiperf {installed.version} {state}, {size}: {installed.program}")


@bench.command(cls=PeagleCommand, epilog="Example: peagle bench status --json")
@json_option
def status(as_json: bool) -> None:
    """Show the installed load generator."""
    if as_json:
        print_json(_document(installed_sender()))
        return
    sender = find_sender()
    took = f"installed in {sender.seconds:.0f} s"
    size = format_size(sender.megabytes * 1e6)
    print_line(f"aiperf {sender.version}, {size}, {took}: {sender.program}")


def _document(sender: Installation | None) -> dict[str, object]:
    return {
        "sender": "aiperf",
        "version": sender.version if sender else None,
        "program": str(sender.program) if sender else None,
        "megabytes": sender.megabytes if sender else None,
        "seconds": sender.seconds if sender else None,
    }
