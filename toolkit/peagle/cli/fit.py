"""``peagle fit``: what one GPU holds, before a GPU is paid for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from peagle.catalog import load_catalog
from peagle.cli.context import PeagleCommand
from peagle.cli.fit_case import HARDWARE_HELP, gib, share
from peagle.cli.fit_report import document, option_of, report_of
from peagle.cli.options import catalog_of, raise_first_error
from peagle.cli.output.console import json_option, print_json
from peagle.errors import Refused
from peagle.fit.advice import MOST_GPUS
from peagle.vllm.defaults import KV_CACHE_DTYPES

Command = Callable[..., Any]

_ONE = click.IntRange(1)


@click.command(
    cls=PeagleCommand,
    epilog="Example: peagle fit gpt-oss-20b --gpu-memory-gib 80 --max-model-len 32768",
)
@click.argument("pair", required=False)
@click.option("--gpu-memory-gib", type=float, callback=gib, help=HARDWARE_HELP)
@click.option("--instance-type", help="Take GPU, memory and number of GPUs from this type instead.")
@click.option(
    "--tp", "--tensor-parallel-size", type=_ONE, help=f"GPUs per model, {MOST_GPUS} at most."
)
@click.option(
    "--gpu-memory-utilization",
    type=float,
    callback=share,
    help="Share of the GPU's memory that vLLM may take.  [default: 0.92, as vLLM]",
)
@click.option("--max-model-len", type=_ONE, help="Longest context, in tokens.")
@click.option("--max-num-seqs", "--concurrency", type=_ONE, help="Requests at the same time.")
@click.option("--max-num-batched-tokens", type=_ONE, help="Most tokens of one step.")
@click.option("--k", type=_ONE, help="Tokens drafted per step.  [default: what the card says]")
@click.option("--kv-cache-dtype", type=click.Choice(KV_CACHE_DTYPES), help="Type of the cache.")
@click.option("--no-speculation", is_flag=True, help="The target alone.")
@click.option("--text-only", is_flag=True, help="No images, for targets that would take them.")
@click.option("--enforce-eager", is_flag=True, help="No CUDA graphs, no compilation.")
@click.option("--compiled", is_flag=True, help="A later start, with vLLM's compile cache filled.")
@click.option("--vllm", help="vLLM version.  [default: the catalogue's]")
@click.option("--target", metavar="PLACE", help="Folder, s3://... or hub id of the target.")
@click.option("--drafter", metavar="PLACE", help="Folder, s3://... or hub id of the head.")
@click.option(
    "--drafter-embeddings",
    type=click.Choice(["shared", "own"]),
    help="Whether the head brings its own matrices, where no header says it.  [default: own]",
)
@json_option
@click.pass_context
def fit(ctx: click.Context, /, pair: str | None, as_json: bool, **given: Any) -> None:
    """Reckon what one GPU holds: weights, working memory, and what is left for the cache.

    The same arithmetic as in plan, after vLLM's own: the cache comes out in tokens as vLLM prints
    them at its start. PAIR may be left out where --target names a folder with a config.json. What
    is not given is what `vllm serve` would take. The exit code is 3 when it does not fit, or when
    `peagle check` would find that the pair cannot work.
    """
    catalog = load_catalog(catalog_of(ctx))
    report = report_of(catalog, pair, given)
    if as_json:
        print_json(document(report))
    else:
        from peagle.cli.output.fit import print_report

        print_report(report)
    if report.refusal:
        first = option_of(report.advice[0]) if report.advice else "no single change helps"
        raise Refused(report.refusal, first)
    raise_first_error(report.findings)
