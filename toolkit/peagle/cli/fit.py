"""``peagle fit``: memory of one GPU and concurrent capacity, before a GPU is paid for."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import click

from peagle import api
from peagle.cli.context import PeagleCommand, findings_in_context
from peagle.cli.options import (
    LONGEST_CONTEXT,
    catalog_of,
    complete_pair,
    raise_first_error,
    settings_option,
)
from peagle.cli.output.console import json_option, print_json
from peagle.cli.parameter_types import REQUESTS, TOKENS, OneOf, Parsed, WholeNumber
from peagle.errors import Fix, Refused
from peagle.fit.advice import MAX_GPUS
from peagle.fit.request import FitRequest
from peagle.text import sanitize
from peagle.vllm.defaults import GPU_MEMORY_UTILIZATION, KV_CACHE_DTYPES

MOST_GIB = 2048
"""No GPU has as much memory; a larger number has another unit."""

_ONE = WholeNumber(1)


def _gib(text: str) -> float:
    """Memory of one GPU in GiB, from 1 to ``MOST_GIB``. Raises ValueError."""
    gib = _number(text, "a number of GiB, such as 80")
    if not math.isfinite(gib) or gib < 1:
        raise ValueError(f"{text} is not a memory size in GiB")
    if gib > MOST_GIB:
        hint = f"; for MiB write {gib / 1024:.1f}" if gib >= 4 * 1024 else ""
        raise ValueError(f"{text} GiB is more than any GPU has{hint}")
    return gib


def _share(text: str) -> float:
    """A share above 0, and 1 at most. Raises ValueError."""
    share = _number(text, "a share above 0 and at most 1, such as 0.9")
    if 0 < share <= 1:
        return share
    hint = f"; write {share / 100:g}" if 10 <= share <= 100 else ""
    raise ValueError(f"{text} is not above 0 and at most 1{hint}")


def _number(text: str, expected: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{sanitize(text, 40)!r} is not {expected}") from None


@click.command(
    cls=PeagleCommand,
    epilog="Example: peagle fit gpt-oss-20b --gpu-memory-gib 80 --max-model-len 32768",
)
@click.argument("pair", required=False, shell_complete=complete_pair)
@click.option(
    "--gpu-memory-gib",
    type=Parsed("float", _gib),
    help="Memory of one GPU as CUDA sees it, such as 139.8 for an H200.",
)
@click.option("--instance-type", help="Use the GPUs of this instance type.")
@click.option(
    "--tp", "--tensor-parallel-size", "tp", type=_ONE, help=f"GPUs per model, {MAX_GPUS} at most."
)
@click.option(
    "--gpu-memory-utilization",
    type=Parsed("float", _share),
    help="Share of the GPU's memory that vLLM may use.  "
    f"[default: {GPU_MEMORY_UTILIZATION}, vLLM's default]",
)
@click.option("--max-model-len", type=TOKENS, metavar="TOKENS", help=LONGEST_CONTEXT)
@click.option(
    "--max-num-seqs",
    "--concurrency",
    type=REQUESTS,
    metavar="REQUESTS",
    help="Concurrent requests.",
)
@click.option(
    "--max-num-batched-tokens",
    type=TOKENS,
    metavar="TOKENS",
    help="Maximum tokens per scheduler step.",
)
@click.option("--k", type=_ONE, help="Tokens drafted per step.  [default: the model card's]")
@click.option("--kv-cache-dtype", type=OneOf(KV_CACHE_DTYPES), help="Data type of the KV cache.")
@click.option("--no-speculation", is_flag=True, help="Estimate without speculation.")
@click.option("--text-only", is_flag=True, help="Text input only, for multimodal targets.")
@click.option("--enforce-eager", is_flag=True, help="Disable CUDA graphs and compilation.")
@click.option("--compiled", is_flag=True, help="Assume a warm compile cache.")
@click.option("--vllm", help="vLLM version.  [default: the catalogue's]")
@click.option("--target", metavar="LOCATION", help="Folder or Hub id of the target.")
@click.option("--drafter", metavar="LOCATION", help="Folder or Hub id of the head.")
@click.option(
    "--drafter-embeddings",
    type=OneOf(["shared", "own"]),
    help="Whether the head has its own embeddings, if no weight header is available.  "
    "[default: own]",
)
@settings_option("An argument of vLLM in place of the catalogue's, such as dtype=float32.")
@json_option
@click.pass_context
def fit(ctx: click.Context, /, pair: str | None, as_json: bool, **options: Any) -> None:
    """Estimate GPU memory and concurrent capacity: weights, working memory, KV cache.

    The memory model is that of plan and follows vLLM's own accounting: the KV cache has as many
    tokens as vLLM reports at startup. PAIR is optional if --target names a folder with a
    config.json. Options that are not given have the defaults of `vllm serve`. Exits with 3 if the
    pair does not fit, or if `peagle check` would reject it.
    """
    catalog = api.load_catalog(catalog_of(ctx))
    options["settings"] = api.checked_settings(options["settings"])
    if pair is not None and options["target"] is None and api.is_own_target(catalog, pair):
        if api.is_on_hub(pair):
            raise api.target_not_read(pair, ("peagle", "fit", "--target", pair), catalog)
        own = api.with_own_target(catalog, pair, api.checkpoint_at)
        catalog = own.catalog
        # The pair is kept for its drafter; a target alone is read as --target reads it.
        options["target"] = own.checkpoint.location if own.checkpoint else None
        pair = pair if api.find_pair(catalog, pair).target.drafters else None
    report = api.fit(FitRequest(pair, **options), catalog, api.checkpoint_at)
    if as_json:
        findings = findings_in_context(report.findings)
        print_json(api.fit_document(replace(report, findings=findings)))
    else:
        from peagle.cli.output.fit import print_report

        print_report(report)
    if report.refusal:
        best = api.mildest(report.advice)
        fix = Fix("no single change helps")
        if best:
            fix = Fix(f"use {best.option}", options=best.options)
        raise Refused(report.refusal, fix, code="does-not-fit")
    raise_first_error(report.findings)
