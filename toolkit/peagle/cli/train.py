"""``peagle train``: a P-EAGLE head for a target: what it would cost and bring, and its training."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from peagle.account import default_region
from peagle.catalog.find import find_pair
from peagle.catalog.loading import load_training
from peagle.catalog.schema import Catalog, Target
from peagle.catalog.tables import HERE
from peagle.checkpoints.models import Checkpoint
from peagle.cli.options import (
    COUNT,
    OUTPUT,
    POSITIVE,
    TOKENS,
    DefaultGroup,
    Parsed,
    add_options,
    catalog_of,
    command,
    command_catalog,
    complete_pair,
    here_option,
    is_here,
    machine_gpus,
    option,
)
from peagle.cli.plan_options import choose_here, engine_options, given_options
from peagle.cli.session import Session, account_options
from peagle.cli.training_jobs import (
    COMMANDS,
    job_options,
    reporting_failure,
    take_job_options,
    train_on_sagemaker,
)
from peagle.cli.view.console import (
    StatusLine,
    print_findings,
    print_json,
    print_result,
    print_status,
    wants_json,
)
from peagle.cli.view.train import print_trained, print_training_plan, show_progress
from peagle.engine.gpus import Gpus, this_machine_in
from peagle.errors import NotProved, OptionsConflict
from peagle.store import read_json
from peagle.text import json_digest, parse_share, plain
from peagle.train.data import (
    HELD_OUT_FILE,
    TRAIN_FILE,
    TrainingData,
    grows,
    read_training_data,
    write_parts,
    write_prompts,
)
from peagle.train.estimate import (
    TrainingOptions,
    disk_bytes,
    measure_data,
    new_head,
    plan_training,
    require_disk,
)
from peagle.train.probe import measure_rates
from peagle.train.recipe import CPU_RECIPE, Recipe, choose_layers, choose_mask_token, parse_settings
from peagle.train.result import RECORD, require_own, write_result
from peagle.train.run import Run
from peagle.train.training import make_training
from peagle.weights.layout import checkpoint_at
from peagle.weights.own_target import with_own_target

if TYPE_CHECKING:
    from peagle.aws.client import Aws


@click.group(cls=DefaultGroup, epilog="Example: peagle train plan ./my/model --data week.jsonl")
def train() -> None:
    """Train a P-EAGLE head for a target; plan it first.

    `peagle train PAIR` is short for `peagle train run PAIR`.
    """


_K = 5
"""The K with which acceptance is measured, as that of published heads is."""


def _held_out(text: str) -> float | Path:
    """A share of the questions, or a file. Raises ValueError."""
    return parse_share(text) if re.fullmatch(r"[\d.]+%?", text) else Path(text)


data_options = add_options([
    option("--data SOURCE", "Training data: a file or folder of JSON lines, s3://..., or "
           "capture:ENDPOINT. Repeatable.", click.Path(), multiple=True, required=True),
    option("--held-out SHARE|FILE", "Text on which acceptance is measured: a share of the data, or "
           "a file.", Parsed("text", _held_out), default="10%"),
    option("--keep-answers", "Train on the data's answers; do not regenerate them.", bool),
    option("--epochs", "Passes over the data.", COUNT, default=Recipe.epochs),
    option("--mask-token-id", "Token of the masked slots.  [default: the tokenizer's spare one]",
           click.IntRange(min=0)),
])  # fmt: skip
"""The options of ``plan`` and ``run``."""


def _read_inputs(
    session: Session, recipe: Recipe, gpus: Gpus | None, options: Mapping[str, Any]
) -> tuple[Catalog, Target, Checkpoint | None, TrainingData]:
    """The catalogue with the pair's target and with these GPUs as this machine, the target, its
    checkpoint if it is the user's own, and the training data. Raises UserError for a target without
    a token for the mask or with too few layers, and for data that cannot be used."""
    pair = options["pair"]

    def connect() -> Aws:
        session.start()
        return session.aws(options["region"] or default_region())

    catalog, checkpoint = with_own_target(
        command_catalog(), pair, lambda location: checkpoint_at(location, connect)
    )
    target = find_pair(catalog, pair).target
    if checkpoint:
        choose_mask_token(target, checkpoint, {}, options["mask_token_id"])
        choose_layers(target.architecture.layers, {})
    data = read_training_data(
        options["data"],
        connect,
        held_out=options["held_out"],
        context=min(recipe.sequence_length, target.default_max_model_len),
        proof_prompts=[each for other in catalog.targets.values() for each in other.proof.prompts],
    )
    return this_machine_in(catalog, gpus) if gpus else catalog, target, checkpoint, data


@command(
    "peagle train plan qwen3-8b --data prompts.jsonl",
    "peagle train plan ./my/model --data prompts.jsonl --instance-type ml.p5.48xlarge --budget 500",
    of=train,
)
@click.argument("pair", shell_complete=complete_pair)
@data_options
@option("--budget USD", "What the training may cost: fewer epochs, or an error.", POSITIVE)
@option("--price-per-hour usd_per_hour USD", "Price of the machine.  [default: the instance "
        "type's, on demand]", POSITIVE)  # fmt: skip
@option("--prompts FILE", "Write the held-out prompts, for `peagle bench --acceptance`.", OUTPUT)
@option("--probe", "Train on this machine for some steps, and compute the time from that.", bool)
@engine_options(TrainingOptions)
@here_option
@account_options
@click.pass_context
def plan(
    ctx: click.Context,
    /,
    session: Session,
    pair: str,
    data: tuple[str, ...],
    held_out: float | Path,
    keep_answers: bool,
    epochs: int,
    mask_token_id: int | None,
    budget: float | None,
    usd_per_hour: float | None,
    probe: bool,
    prompts: Path | None,
    **options: Any,
) -> None:
    """Say whether to train a head for PAIR, before anything is spent: hours and cost, the expected
    acceptance, and the one at which the head pays.

    The head is for the target, whatever drafter PAIR names. It is trained and served on the same
    instance type, by default that of `peagle plan`. Time is computed from the performance model,
    and the expected acceptance from published heads with as many tokens of training; both have wide
    ranges.
    """
    gpus = machine_gpus(ctx) if probe else None
    if is_here(ctx) or (gpus and not (options["instance_type"] or options["gpu"])):
        options |= choose_here(options)

    recipe = replace(
        CPU_RECIPE if probe and not gpus else Recipe(),
        epochs=epochs,
        keep_answers=keep_answers,
        mask_token_id=mask_token_id,
    )
    catalog, _, checkpoint, conversations = _read_inputs(session, recipe, gpus, ctx.params)
    rates = None
    if probe:
        training = make_training(
            pair, Path.cwd(), _K, recipe, conversations, catalog, checkpoint, gpus
        )
        with StatusLine() as status:
            show = partial(show_progress, status)
            rates = measure_rates(training, show, options["output_tokens"])
    planned = plan_training(
        TrainingOptions(pair=pair, **given_options(options)),
        measure_data(conversations.train, recipe, options["output_tokens"]),
        recipe,
        catalog,
        load_training(catalog_of(ctx)),
        budget=budget,
        usd_per_hour=usd_per_hour,
        rates=rates,
    )
    if planned.instance_type == HERE:
        require_disk(planned.disk_bytes, Path.cwd())
    if prompts:
        write_prompts(conversations.held_out, prompts)
    if wants_json():
        return print_json({**plain(planned), "findings": conversations.findings})
    print_training_plan(planned, prompts)
    return print_findings(conversations.findings, title="Data")


@command(
    "peagle train tiny --data questions.jsonl -o head",
    "peagle train ./my/model --data s3://bucket/captured/ -o head --epochs 3",
    "peagle train qwen3-8b --data capture:chat -o head --sagemaker --spot --image IMAGE",
    of=train,
)
@click.argument("pair", shell_complete=complete_pair)
@data_options
@option("-o --output HEAD", "Folder of the head; the same command continues there.", OUTPUT,
        required=True)  # fmt: skip
@option("--k", "Tokens drafted per step, with which acceptance is measured.", COUNT, default=_K)
@option("--layers", "Layers of the head.", COUNT, default=Recipe.layers)
@option("--sequence-length TOKENS", "Tokens of a training step.  [default: 8192; CPU: 256]", TOKENS)
@option("--answer-tokens TOKENS", "Longest answer of the target.  [default: 1024; CPU: 192]",
        TOKENS)  # fmt: skip
@option("--set settings NAME=VALUE", "An argument of `speculators train`, such as lr=0.001. "
        "Repeatable.", multiple=True)  # fmt: skip
@option("--price-per-hour usd_per_hour USD", "Price of this machine; shows the cost so far.",
        POSITIVE)  # fmt: skip
@option("--work", "Folder of answers and checkpoints, to go on from.  [default: in HEAD]", OUTPUT)
@job_options
@account_options
@click.pass_context
@reporting_failure()
def run(
    ctx: click.Context,
    /,
    session: Session,
    pair: str,
    data: tuple[str, ...],
    held_out: float | Path,
    output: Path,
    k: int,
    settings: tuple[str, ...],
    work: Path | None,
    usd_per_hour: float | None,
    **chosen: Any,
) -> None:
    """Train a head for PAIR's target, on this machine or SageMaker, and measure its acceptance.

    The target answers the questions of the data, the head learns from the target's hidden states,
    and of all epochs the one is kept whose drafts the engine accepts most on held-out text. An
    interrupted training keeps its last checkpoint; the same command continues. Needs `peagle engine
    install` and `peagle engine install --trainer`, both with --gpu on GPUs.

    With --sagemaker the same command runs as a training job. Shows the job and what it costs at
    most, asks, waits for its end, and downloads the head; Ctrl-C leaves it running.
    """
    job = take_job_options(ctx, chosen)
    if job["sagemaker"] and usd_per_hour:
        message = "--price-per-hour is of this machine; a job has the price of its instance type"
        raise OptionsConflict(message, "leave it out")
    gpus = None if job["sagemaker"] else machine_gpus(ctx)
    usual = Recipe() if gpus or job["sagemaker"] else CPU_RECIPE
    changes = {"depths": max(k, usual.depths), **given_options(chosen)}
    recipe = replace(usual, **changes, settings=parse_settings(settings, chosen["epochs"]))
    inputs, digest = dict(ctx.params), json_digest([data, str(held_out)])[:8]
    kept = (work or output / ".work").absolute() / f"read-{digest}"
    is_kept = (kept / TRAIN_FILE).exists() and not job["sagemaker"]
    if is_kept:
        print_status(f"The data is that which this training read first, in {kept}.")
        inputs |= {"data": (str(kept / TRAIN_FILE),), "held_out": kept / HELD_OUT_FILE}
    catalog, target, checkpoint, conversations = _read_inputs(session, recipe, gpus, inputs)
    print_findings(conversations.findings, err=True)
    if job["sagemaker"]:
        train_on_sagemaker(ctx, session, catalog, conversations, recipe, job)
        return
    training = make_training(
        pair, output.absolute(), k, recipe, conversations, catalog, checkpoint, gpus,
        work and work.absolute(),
    )  # fmt: skip
    size = measure_data(conversations.train, recipe)
    require_own(training)
    if not training.work.exists():  # else a part is written
        require_disk(disk_bytes(size, new_head(target, recipe), recipe.epochs), training.output)
    if grows(data) and not is_kept:
        write_parts(conversations, kept)
    with StatusLine() as status:
        show = partial(show_progress, status, usd_per_hour=usd_per_hour)
        trained = Run(training, show).train()
    entry = write_result(training, trained)
    document = {"head": str(training.output), "catalog_entry": str(entry)}
    document |= read_json(training.output / RECORD)
    print_result(document, lambda _: print_trained(output, trained))
    if not trained.lossless["passed"]:
        raise NotProved(
            "speculation with the head changes answers of the target",
            "serve it with `peagle local up`; `peagle bench local --lossless` shows where",
            "not-lossless",
        )


for job_command in COMMANDS:
    train.add_command(job_command)
