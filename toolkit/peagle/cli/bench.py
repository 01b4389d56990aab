"""``peagle bench``: speed, latencies, acceptance and cost of a server under load."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import click

from peagle import api
from peagle.bench.gates import BenchGates
from peagle.bench.measure import INTERRUPTED, BenchTarget
from peagle.bench.models import BenchResult
from peagle.bench.server import KEY_VARIABLE
from peagle.cli.account import (
    Account,
    cloud_options,
    complete_name,
    find_endpoint,
    names_deployment,
)
from peagle.cli.bench_gates import gate_options
from peagle.cli.bench_report import bench_report
from peagle.cli.bench_sweep import sweep
from peagle.cli.bench_text import TextOptions, measure_text, text_options
from peagle.cli.context import PeagleCommand
from peagle.cli.options import (
    LOADS,
    TOKENS,
    USD,
    command_catalog,
    repetitions_option,
    requests_option,
)
from peagle.cli.output.bench import print_result
from peagle.cli.output.console import json_option, print_json, print_line, print_status
from peagle.cli.output.progress import StatusLine
from peagle.cli.project import ProjectCommand, endpoint_argument
from peagle.engine.state import LocalEngine
from peagle.errors import EngineError, Fix, NotFound, PeagleError, UserError
from peagle.text import format_size

LOCAL = "local"
"""The target that is the only engine of ``peagle local up``."""

_RUN = "run"
_SWEEP = "sweep"


class _Bench(click.Group):
    """A group whose commands ``run`` and ``sweep`` need no name: ``peagle bench NAME``, and
    ``peagle bench PAIR --sweep k=none,3``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the command unless one, or ``--help``, comes first."""
        if args and args[0] not in (*self.commands, "--help", "-h"):
            sweeps = any(one == "--sweep" or one.startswith("--sweep=") for one in args)
            args = [_SWEEP if sweeps else _RUN, *args]
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
bench.add_command(bench_report)


@bench.command(
    _RUN, cls=ProjectCommand, epilog="Example: peagle bench run peagle-tiny --sandbox --json"
)
@endpoint_argument(complete_name, "NAME|URL|local")
@click.option(
    "--workload",
    metavar="NAME|FILE",
    default="short-prompt",
    show_default=True,
    help="short-prompt (128 tokens, answers of 400), long-prompt (2048, 256), long-answer (128, "
    "1024), or a file of JSON lines with prompts.",
)
@click.option(
    "--concurrency",
    type=LOADS,
    metavar="N[,N...]",
    default="8",
    show_default=True,
    help="Requests at a time; several loads are measured in turn.",
)
@repetitions_option
@requests_option
@click.option("--prompt-tokens", type=TOKENS, metavar="N", help="Size of the random prompts.")
@click.option("--output-tokens", type=TOKENS, metavar="N", help="Size of the answers.")
@click.option("--model", metavar="ID", help="Model in the requests.  [default: the served one]")
@click.option(
    "--price-per-hour",
    type=USD,
    metavar="USD",
    help="Price of the server.  [default: the endpoint's, on demand]",
)
@text_options
@gate_options
@cloud_options
@json_option
@click.pass_context
def run(
    ctx: click.Context,
    name: str,
    workload: str,
    concurrency: tuple[int, ...],
    repetitions: int,
    requests: int | None,
    prompt_tokens: int | None,
    output_tokens: int | None,
    model: str | None,
    price_per_hour: float | None,
    text: TextOptions,
    gates: BenchGates,
    region: str | None,
    account: Account,
    as_json: bool,
) -> None:
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
    if text.chosen:

        def find(server: str) -> BenchTarget:
            return find_target(ctx, account, server, region, model)

        measure_text(find(name), find, text, output_tokens, max(concurrency), as_json)
        return
    loads = api.bench_loads(
        workload, concurrency, repetitions, requests, prompt_tokens, output_tokens
    )
    target = find_target(ctx, account, name, region, model)
    sender = api.load_sender()
    if price_per_hour is not None:
        target = api.with_price(target, price_per_hour)
    with StatusLine() as status:
        result = api.bench(
            target,
            loads,
            sender,
            ["peagle", *sys.argv[1:]],
            lambda load, ended, total: status.show(load, f"{ended} of {total} requests"),
        )
    finish(result, as_json)
    api.require_gates(result, gates)


def finish(result: BenchResult, as_json: bool) -> None:
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
        return api.target_of_url(name, model, os.environ.get(KEY_VARIABLE))
    if name == LOCAL:
        return api.target_of_engine(_only_engine())
    on_aws = names_deployment(account, region, name)
    if engine := None if on_aws else api.ready_engine(name):
        return api.target_of_engine(engine)
    try:
        record, aws = find_endpoint(account, name, region)
    except NotFound as unknown:
        if on_aws or (fix := _local_fix(ctx, name)) is None:
            raise
        raise NotFound(f"there is no deployment {name!r}", fix, unknown.code) from unknown
    with StatusLine() as line:
        wake_up = api.WakeUpOptions(on_progress=lambda progress: line.show_line(progress.text))
        return api.target_of_endpoint(aws, name, record, command_catalog(ctx), model, wake_up)


def _local_fix(ctx: click.Context, name: str) -> Fix | None:
    """What the user of a local engine, or of a pair's name, may have meant; ``None`` without."""
    ready = [one for one in api.local_engines() if one.state == "ready"]
    engine = next((one for one in ready if _serves(one, name)), None)
    if engine is not None:
        own = LOCAL if len(ready) == 1 else engine.name
        sentence = "measure the local engine that runs, or add --sweep k=none,5 to start new ones"
        return Fix(sentence, ("peagle", "bench", own))
    with suppress(PeagleError):
        api.find_pair(command_catalog(ctx), name)
        return Fix(
            "this is the name of a pair: measure the pair on this machine",
            ("peagle", "bench", name, "--sweep", "k=none,5"),
        )
    return None


def _serves(engine: LocalEngine, name: str) -> bool:
    """Whether the engine's pair is ``name``, in full, its target, or the short name of that."""
    target = engine.pair.partition("+")[0]
    return name in (engine.pair, target, target.rpartition("/")[2])


def _only_engine() -> LocalEngine:
    """The only engine of this machine. Raises NotFound without one, and UserError for several."""
    names = [engine.name for engine in api.local_engines() if engine.state == "ready"]
    if not names:
        start = Fix("start one", ("peagle", "local", "up", "PAIR"))
        raise NotFound("no engine of this machine is running", start, code="no-such-engine")
    if len(names) > 1:
        raise UserError(
            f"{len(names)} engines are running: {', '.join(names)}",
            "specify only one of them",
            code="several-engines",
        )
    engine = api.ready_engine(names[0])
    assert engine is not None
    return engine


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
    present = not again and api.installed_sender() is not None
    installed = api.install_sender(python, again, print_status)
    if as_json:
        print_json({**_installation_document(), "was_installed": present})
        return
    state = "is already installed" if present else "is installed"
    size = format_size(installed.megabytes * 1e6)
    took = f" in {installed.seconds:.0f} s" if not present else ""
    print_line(f"aiperf {installed.version} {state}{took}, {size}: {installed.program}")


@bench.command(cls=PeagleCommand, epilog="Example: peagle bench status --json")
@json_option
def status(as_json: bool) -> None:
    """Show the installed load generator."""
    if as_json:
        print_json(_installation_document())
        return
    found = api.find_sender()
    size = format_size(found.megabytes * 1e6)
    print_line(
        f"aiperf {found.version}, {size}, installed in {found.seconds:.0f} s: {found.program}"
    )


def _installation_document() -> dict[str, object]:
    found = api.installed_sender()
    return {
        "sender": "aiperf",
        "version": found.version if found else None,
        "program": str(found.program) if found else None,
        "megabytes": found.megabytes if found else None,
        "seconds": found.seconds if found else None,
    }
