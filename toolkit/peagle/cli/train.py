"""``peagle train``: a P-EAGLE head for a target: what it would cost and bring, and its training."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import click

from peagle.catalog.loading import load_training
from peagle.catalog.tables import HERE
from peagle.checkpoints.models import Checkpoint
from peagle.cli.options import (
    COUNT,
    POSITIVE,
    DefaultGroup,
    catalog_of,
    command,
    command_catalog,
    complete_pair,
    here_option,
    is_here,
    option,
)
from peagle.cli.plan_options import choose_here, engine_options, given_options
from peagle.cli.session import Session, account_options
from peagle.cli.view.console import print_result
from peagle.cli.view.train import print_training_plan
from peagle.planning.runtime import DEFAULT_REGION
from peagle.train.data import read_data
from peagle.train.estimate import TrainingOptions, measure_data, plan_training, require_disk
from peagle.train.recipe import Recipe
from peagle.weights.layout import checkpoint_at
from peagle.weights.own_target import with_own_target


@click.group(
    cls=DefaultGroup,
    epilog="""\b
Examples:
  peagle train plan gpt-oss-20b --data prompts.jsonl --budget 500
  peagle train plan ./my/model --data s3://bucket/captured/ --instance-type ml.p5.48xlarge
""",
)
def train() -> None:
    """Train a P-EAGLE head for a target; plan it first.

    `peagle train PAIR` is short for `peagle train run PAIR`.
    """


@command(
    "peagle train plan qwen3-8b --data prompts.jsonl",
    "peagle train plan ./my/model --data prompts.jsonl --instance-type ml.p5.48xlarge --budget 500",
    of=train,
)
@click.argument("pair", shell_complete=complete_pair)
@option(
    "--data SOURCE",
    "Training data: JSON lines in a FILE or at s3://.",
    multiple=True,
    required=True,
)
@option("--epochs", "Passes over the data.", COUNT, default=Recipe.epochs)
@option("--keep-answers", "Train on the data's answers; do not regenerate them.", bool)
@option("--budget USD", "What the training may cost: fewer epochs, or none.", POSITIVE)
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
    epochs: int,
    keep_answers: bool,
    budget: float | None,
    **options: Any,
) -> None:
    """Say whether to train a head for PAIR, before anything is spent: hours and cost, the expected
    acceptance, and the one at which the head pays.

    The target is trained for, whatever drafter PAIR names. Without a GPU, those of `peagle plan`
    are used. Time is computed from the performance model, and the expected acceptance from
    published heads with as many tokens of training; both have wide ranges.
    """
    if is_here(ctx):
        options |= choose_here(options)

    def read(location: str) -> Checkpoint:
        session.start()
        return checkpoint_at(location, lambda: session.aws(options["region"] or DEFAULT_REGION))

    catalog, _ = with_own_target(command_catalog(), pair, read)
    recipe = Recipe(epochs=epochs)
    conversations = [each.messages for each in read_data(data, session).train]
    planned = plan_training(
        TrainingOptions(pair=pair, **given_options(options)),
        measure_data(conversations, recipe.sequence_length, options["output_tokens"]),
        recipe,
        catalog,
        load_training(catalog_of(ctx)),
        budget=budget,
        regenerates=not keep_answers,
        prompts=data[0],
    )
    if planned.instance_type == HERE:
        require_disk(planned, shutil.disk_usage(Path.cwd()).free, str(Path.cwd()))
    print_result(planned, print_training_plan)
