"""``peagle train``: a P-EAGLE head for a target: what it would cost and bring, and its training, on
this machine or as a job on SageMaker."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import click

from peagle.account import default_region
from peagle.aws.client import Aws
from peagle.aws.iam import find_role
from peagle.aws.s3 import default_bucket
from peagle.aws.training import TrainingJob, describe_job, find_running_job, follow_job, stop_job
from peagle.catalog.find import find_instance, find_pair
from peagle.catalog.loading import load_table
from peagle.catalog.schema import NO_GPU, Catalog
from peagle.catalog.tables import HERE, TrainingTable
from peagle.checkpoints.models import Checkpoint
from peagle.cli import view
from peagle.cli.context import command_text
from peagle.cli.options import (
    DefaultGroup,
    Parsed,
    add_options,
    catalog_of,
    command,
    command_catalog,
    complete_pair,
    here_option,
    machine_gpus,
    option,
    print_and_refuse,
    yes_option,
)
from peagle.cli.plan_options import engine_options, field_options, given_options
from peagle.cli.session import Session, account_options, cloud_options
from peagle.cli.view.train import (
    job_text,
    print_job,
    print_job_request,
    print_trained,
    print_training_plan,
    show_progress,
)
from peagle.engine.gpus import Gpus, this_machine_in
from peagle.errors import (
    NotFound,
    NotProved,
    OptionMissing,
    OptionsConflict,
    PeagleError,
    UserError,
)
from peagle.planning.company import Company, check_company
from peagle.planning.runtime import find_price
from peagle.store import read_json, require_free, write_text
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
    USUAL_K,
    TrainingOptions,
    TrainingPlan,
    measure_data,
    measure_rates,
    plan_training,
)
from peagle.train.job import (
    FAILURE_FILE,
    JOB_VARIABLE,
    JobSettings,
    fetch_head,
    job_arguments,
    job_findings,
    make_run,
    start_job,
    training_job_request,
)
from peagle.train.recipe import (
    CPU_RECIPE,
    Recipe,
    choose_layers,
    choose_mask_token,
    make_training,
    parse_settings,
)
from peagle.train.result import RECORD, require_empty, require_own, write_result
from peagle.train.run import Run
from peagle.weights.layout import checkpoint_at
from peagle.weights.own_target import is_on_hub, is_own_target, split_draftless, with_own_target
from peagle_serve.contract import ML_ROOT, ROOT_VARIABLE, is_s3_uri


@click.group(cls=DefaultGroup, epilog="Example: peagle train plan ./my/model --data week.jsonl")
def train() -> None:
    """Train a P-EAGLE head for a target; plan it first.

    `peagle train PAIR` is short for `peagle train run PAIR`.
    """


def _held_out(text: str) -> float | Path:
    """A share of the questions, or a file. Raises ValueError."""
    return parse_share(text) if re.fullmatch(r"[\d.]+%?", text) else Path(text)


data_options = add_options([
    option("--data SOURCE", "Training data: a file or folder of JSON lines, s3://..., or "
           "capture:ENDPOINT. Repeatable.", click.Path(), multiple=True, required=True),
    option("--held-out SHARE|FILE", "Text on which acceptance is measured: a share of the data, or "
           "a file.", Parsed("text", _held_out), default="10%"),
    option("--keep-answers", "Train on the data's answers; do not regenerate them.", bool),
    option("--epochs", "Passes over the data.", "count", default=Recipe.epochs),
    option("--mask-token-id", "Token of the masked slots.  [default: the tokenizer's spare one]",
           click.IntRange(min=0)),
    option("--set settings NAME=VALUE", "An argument of `speculators train`, such as lr=0.001. "
           "Repeatable.", multiple=True),
    option("--layers", "Layers of the head.", "count", default=Recipe.layers),
    option("--sequence-length", "Tokens of a training step.  [default: 8192; CPU: 256]", "tokens"),
    option("--answer-tokens", "Longest answer of the target.  [default: 1024; CPU: 192]", "tokens"),
])  # fmt: skip
"""The options of ``plan`` and ``run``."""
_RECIPE_OPTIONS = (
    "epochs", "keep_answers", "mask_token_id", "layers", "sequence_length", "answer_tokens",
)  # fmt: skip


def _read_inputs(
    session: Session, recipe: Recipe, gpus: Gpus | None, options: Mapping[str, Any]
) -> tuple[Catalog, Checkpoint | None, TrainingData]:
    """The catalogue with the target and with these GPUs as this machine, the checkpoint of a target
    that is the user's own, and the training data. Raises UserError for a pair with a drafter, for a
    target without a token for the mask or with too few layers, and for data that cannot be used."""
    pair = options["pair"]

    def connect() -> Aws:
        return session.connect(options["region"] or default_region())

    catalog, checkpoint = with_own_target(
        command_catalog(), pair, lambda location: checkpoint_at(location, connect)
    )
    if drafter := split_draftless(pair)[1] if checkpoint else pair.partition("+")[2]:
        message = f"a head is trained for a target alone, and {pair} has the drafter {drafter}"
        raise UserError(message, f"leave out +{drafter}", "drafter-in-training")
    target = find_pair(catalog, pair).target
    if checkpoint or recipe.mask_token_id is not None:
        choose_mask_token(target, checkpoint or Checkpoint(pair, {}), {}, recipe.mask_token_id)
    if checkpoint:
        choose_layers(target.architecture.layers, {})
    data = read_training_data(
        options["data"],
        connect,
        held_out=options["held_out"],
        context=min(recipe.sequence_length, target.default_max_model_len),
        proof_prompts=[each for other in catalog.targets.values() for each in other.proof.prompts],
    )
    return this_machine_in(catalog, gpus) if gpus else catalog, checkpoint, data


@command(
    "peagle train plan qwen3-8b --data prompts.jsonl",
    "peagle train plan ./my/model --data prompts.jsonl --instance-type ml.p5.48xlarge --budget 500",
    of=train,
)
@click.argument("pair", shell_complete=complete_pair)
@data_options
@option("--budget", "What the training may cost: fewer epochs, or an error.", "usd")
@option("--price-per-hour usd_per_hour", "Price of the machine.  [default: the instance "
        "type's, on demand]", "usd")  # fmt: skip
@option("--prompts FILE", "Write the held-out prompts, for `peagle bench --acceptance`.", "path")
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
    budget: float | None,
    usd_per_hour: float | None,
    probe: bool,
    prompts: Path | None,
    **options: Any,
) -> None:
    """Say whether to train a head for the target PAIR, before anything is spent: hours and cost,
    the expected acceptance, and the one at which the head pays.

    The head is trained and served on the same instance type, by default that of `peagle plan`. Time
    is computed from the performance model, and the expected acceptance from published heads with as
    many tokens of training; both have wide ranges.
    """
    gpus = machine_gpus(ctx) if probe else None
    if gpus and not (options["instance_type"] or options["gpu"]):
        options["instance_type"] = HERE
    recipe = replace(
        CPU_RECIPE if probe and not gpus else Recipe(),
        settings=parse_settings(options.pop("settings")),
        **given_options({name: options.pop(name) for name in _RECIPE_OPTIONS}),
    )
    catalog, checkpoint, conversations = _read_inputs(session, recipe, gpus, ctx.params)
    rates, kind = None, options["instance_type"]
    if probe:
        here = find_instance(catalog.instances, HERE).gpu if gpus else NO_GPU
        priced = options["gpu"] or (kind and find_instance(catalog.instances, kind).gpu) or here
        if priced.lower() != here.lower():
            message = f"--probe measures this machine ({here}), not {priced}"
            raise OptionsConflict(message, "leave out --probe, or --gpu and --instance-type")
        training = make_training(
            pair, Path.cwd(), USUAL_K, recipe, conversations, catalog, checkpoint, gpus
        )
        with view.StatusLine() as status:
            show = partial(show_progress, status)
            rates = measure_rates(training, show, options["output_tokens"])
    planned = plan_training(
        TrainingOptions(pair=pair, **given_options(options)),
        measure_data(conversations.train, recipe, options["output_tokens"]),
        recipe,
        catalog,
        load_table(TrainingTable, catalog_of(ctx)),
        budget=budget,
        usd_per_hour=usd_per_hour,
        rates=rates,
    )
    if planned.instance_type == HERE:
        require_free(Path.cwd(), planned.disk_bytes, "the training")
    if prompts:
        write_prompts(conversations.held_out, prompts)
    instance = find_instance(catalog.instances, planned.instance_type)
    needed = planned.disk_bytes + find_pair(catalog, pair).target.weight_bytes
    findings = (*conversations.findings, *job_findings(instance, needed))
    if planned.instance_type != HERE and not usd_per_hour:
        findings += find_price(instance, options["region"] or default_region())[1]
    view.print_json({**plain(planned), "findings": findings})
    print_training_plan(planned, prompts)
    print_and_refuse(findings, err=False, title="Findings")


_USUAL_HOURS, _MOST_HOURS = 24.0, 120.0
"""The runtime where none is known, and AWS's default limit, which it raises on request."""

_COMPANY = ("subnets", "security_groups", "network_isolation", "kms_key", "tags")
_JOB_OPTIONS = [
    option("--sagemaker", "Train as a job on SageMaker; HEAD is downloaded from there.", bool),
    option("--instance-type", "Instance type of the job.  [default: that of `peagle train plan`]"),
    option("--spot", "A job on spot instances, which goes on after an interruption.", bool),
    option("--max-hours", "Longest runtime.  [default: as estimated]", click.FloatRange(0.1, 672)),
    option("--image", "Image of the job, which has the toolkit and its trainer."),
    option("--role", "Execution role: ARN or name.  [default: found automatically]",
           envvar="PEAGLE_ROLE"),
    option("--bucket", "S3 bucket of data, checkpoints and heads.  [default: "
           "peagle-sagemaker-REGION-ACCOUNT, created if needed]"),
    option("--region", "AWS region of the job, and of capture:ENDPOINT.  [env: AWS_REGION; "
           "default: us-east-1]"),
    *field_options(*_COMPANY),
]  # fmt: skip
for _job_option in _JOB_OPTIONS:
    _job_option.group = "SageMaker"
    # The data may need the region too.
    _job_option.needs = "--sagemaker" if _job_option.name != "region" else ""


def _check_target(ctx: click.Context, pair: str) -> None:
    if folder := catalog_of(ctx):
        message = f"the image of a job has the bundled catalogue, not {folder}"
        raise OptionsConflict(message, "name the target's Hub id or s3:// address, without it")
    if is_own_target(command_catalog(), pair) and not is_s3_uri(pair) and not is_on_hub(pair):
        fix = "copy it to S3 with aws s3 sync, and name s3://BUCKET/FOLDER"
        raise UserError(f"a job cannot read {pair} on this machine", fix, "job-local-target")


def _train_on_sagemaker(
    ctx: click.Context,
    session: Session,
    catalog: Catalog,
    data: TrainingData,
    planned: TrainingPlan,
    options: Mapping[str, Any],
) -> None:
    """Start the job that trains the head, or find the one that does, wait for its end, and download
    the head. Ctrl-C leaves the job running. ``catalog`` has the target."""
    pair, region = ctx.params["pair"], options["region"] or default_region()
    _check_target(ctx, pair)
    require_empty(ctx.params["output"])
    arguments = job_arguments(pair, ctx.params["output"].resolve().name, _repeat_options(ctx))
    company = Company(**given_options({name: options[name] for name in _COMPANY}))
    check_company(company)
    aws = session.connect(region)
    bucket = options["bucket"] or default_bucket(aws.account, region)
    run = make_run(planned.target, arguments, data, bucket)
    name = find_running_job(aws, run.name)
    if name is None:
        job = _choose_settings(aws, catalog, pair, planned, options, company)
        name = run.job_name(time.time())
        request = training_job_request(name, run, pair, arguments, job)
        print_job_request(request, job, planned, session.where(region))
        print_and_refuse(tuple(job_findings(job.instance, job.disk_bytes)))
        view.confirm("Start this job?", "not started")
        start_job(aws, run, data, request, company)
    else:
        view.print_status(f"The job {name} trains this head already.")
    _fetch_when_ended(ctx, aws, name, ctx.params["output"])


def _choose_settings(
    aws: Aws, catalog: Catalog, pair: str, planned: TrainingPlan, options: Mapping[str, Any],
    company: Company,
) -> JobSettings:  # fmt: skip
    image = options["image"]
    if image is None and not aws.in_sandbox:
        fix = "build and push it as docs/train.md shows, and add --image"
        raise OptionMissing("a job needs an image with the toolkit and its trainer", fix)
    estimate = planned.hours["total"].high if planned.hours else _USUAL_HOURS
    hours = options["max_hours"] or min(max(estimate, 1.0), _MOST_HOURS)
    return JobSettings(
        find_instance(catalog.instances, planned.instance_type),
        image or "any",  # the sandbox starts a process
        find_role(aws, options["role"], "train"),
        round(hours * 3600),
        planned.disk_bytes + find_pair(catalog, pair).target.weight_bytes,
        options["spot"],
        company,
    )


@contextmanager
def reporting_failure() -> Iterator[None]:
    """In a container of a job, write an error where SageMaker reads why it failed."""
    try:
        yield
    except PeagleError as error:
        if JOB_VARIABLE in os.environ:
            root = Path(os.environ.get(ROOT_VARIABLE, ML_ROOT))
            write_text(root / FAILURE_FILE, str(error))
        raise


def _repeat_options(ctx: click.Context) -> list[str]:
    """The options of the running command that its job has too, as words."""
    words: list[str] = []
    chosen = given_options({name: ctx.params[name] for name in (*_RECIPE_OPTIONS, "k", "settings")})
    for parameter in ctx.command.params:
        value = chosen.get(parameter.name or "", parameter.default)
        if value != parameter.default:
            flag = max(parameter.opts, key=len)
            values = value if isinstance(value, tuple) else (value,)
            words += [flag] if value is True else [word for v in values for word in (flag, str(v))]
    return words


def _fetch_when_ended(ctx: click.Context, aws: Aws, name: str, output: Path) -> None:
    """Wait for the end of the job, showing its state and the last line of its log, and download its
    head."""
    try:
        with view.StatusLine() as status:
            line = ""
            for job, tail in follow_job(aws, name):
                line = next((event.message for event in reversed(tail.drain())), line)
                status.show_line(job_text(job, _usd(job, aws.region), line))
            status.show_line(f"Downloading {job.artifact}")
            fetch_head(aws, job, output)
    except KeyboardInterrupt:
        text = f"The job {name} goes on. To wait for it again, repeat the command; to end it"
        view.print_status(text, command_text(("peagle", "train", "stop", name)))
        ctx.exit(view.INTERRUPTED)
    _show_job(job, aws.region, output)


def _usd(job: TrainingJob, region: str) -> float | None:
    """What the job costs until now, at the price of hosting; ``None`` where that is unknown."""
    price = None
    with suppress(NotFound):
        price = find_instance(command_catalog().instances, job.instance_type).price_in(region)
    return price.usd_per_hour * job.billable_seconds / 3600 if price else None


def _show_job(job: TrainingJob, region: str, output: Path | None = None) -> None:
    usd = _usd(job, region)
    document = {**plain(job), "usd": usd, "head": str(output.absolute()) if output else None}
    view.print_result(document, lambda _: print_job(job, usd, output))


@command(
    "peagle train tiny --data questions.jsonl -o head",
    "peagle train ./my/model --data s3://bucket/captured/ -o head --epochs 3",
    "peagle train qwen3-8b --data capture:chat -o head --sagemaker --spot --image IMAGE",
    of=train,
)
@click.argument("pair", shell_complete=complete_pair)
@data_options
@option("-o --output HEAD", "Folder of the head; the same command continues there.", "path",
        required=True)  # fmt: skip
@option("--k", "Tokens drafted per step, with which acceptance is measured.", "count",
        default=USUAL_K)  # fmt: skip
@option("--price-per-hour usd_per_hour", "Price of this machine; shows the cost so far.", "usd")
@option("--work", "Folder of answers and checkpoints, to go on from.  [default: in HEAD]", "path")
@yes_option
@add_options(_JOB_OPTIONS)
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
    """Train a head for the target PAIR, on this machine or SageMaker, and measure its acceptance.

    The target answers the questions of the data, the head learns from the target's hidden states,
    and of all epochs the one is kept whose drafts the engine accepts most on held-out text. An
    interrupted training keeps its last checkpoint; the same command continues. Needs `peagle engine
    install` and `peagle engine install --trainer`, both with --gpu on GPUs.

    With --sagemaker the same command runs as a training job. Shows the job and what it costs at
    most, asks, waits for its end, and downloads the head; Ctrl-C leaves it running.
    """
    job = {name: chosen.pop(name) for name in [str(option.name) for option in _JOB_OPTIONS]}
    gpus = None if job["sagemaker"] else machine_gpus(ctx)
    usual = Recipe() if gpus or job["sagemaker"] else CPU_RECIPE
    changes = {"depths": max(k, usual.depths), **given_options(chosen)}
    recipe = replace(usual, **changes, settings=parse_settings(settings))
    inputs, digest = dict(ctx.params), json_digest([data, str(held_out)])[:8]
    kept = (work or output / ".work").absolute() / f"read-{digest}"
    is_kept = (kept / TRAIN_FILE).exists() and not job["sagemaker"]
    if is_kept:
        view.print_status(f"The data is that which this training read first, in {kept}.")
        inputs |= {"data": (str(kept / TRAIN_FILE),), "held_out": kept / HELD_OUT_FILE}
    catalog, checkpoint, conversations = _read_inputs(session, recipe, gpus, inputs)
    place, region = HERE if gpus else job["instance_type"], job["region"] or default_region()
    planned = plan_training(
        TrainingOptions(pair=pair, instance_type=place, region=region),
        measure_data(conversations.train, recipe),
        recipe,
        catalog,
        load_table(TrainingTable, catalog_of(ctx)),
    )
    view.print_findings((*conversations.findings, *planned.findings), err=True)
    if job["sagemaker"]:
        _train_on_sagemaker(ctx, session, catalog, conversations, planned, job)
        return
    training = make_training(
        pair, output.absolute(), k, recipe, conversations, catalog, checkpoint, gpus,
        work and work.absolute(),
    )  # fmt: skip
    require_own(training)
    if not training.work.exists():  # else a part is written
        require_free(training.output, planned.disk_bytes, "the training")
    if grows(data) and not is_kept:
        write_parts(conversations, kept)
    with view.StatusLine() as status:
        show = partial(show_progress, status, usd_per_hour=usd_per_hour)
        trained = Run(training, show).train()
    entry = write_result(training, trained)
    document = {"head": str(training.output), "catalog_entry": str(entry)}
    document |= read_json(training.output / RECORD)
    view.print_result(document, lambda _: print_trained(output, trained))
    if not trained.lossless["passed"]:
        message = "speculation with the head changes answers of the target"
        fix = "serve it with `peagle local up`; `peagle bench local --lossless` shows where"
        raise NotProved(message, fix, "not-lossless")


@command("peagle train status NAME", "peagle train status NAME -o head", of=train)
@click.argument("name")
@option("-o --output HEAD", "Wait for the end of the job, and download its head.", "path")
@cloud_options
@click.pass_context
def status(ctx: click.Context, /, name: str, session: Session, output: Path | None) -> None:
    """Show the training job NAME, or wait for it and download its head."""
    aws = session.aws()
    if output is not None:
        require_empty(output)
        return _fetch_when_ended(ctx, aws, name, output)
    return _show_job(describe_job(aws, name), aws.region)


@command("peagle train logs NAME --follow", of=train)
@click.argument("name")
@option("--follow -f", "Follow the log until the job ends, or Ctrl-C.", bool)
@cloud_options
def logs(name: str, session: Session, follow: bool) -> None:
    """Show the CloudWatch log of the training job NAME."""
    looks = islice(follow_job(session.aws(), name), None if follow else 1)
    view.print_log(name, (event for _, tail in looks for event in tail.new()), follow)


@command("peagle train stop NAME", of=train)
@click.argument("name")
@cloud_options
def stop(name: str, session: Session) -> None:
    """Stop the training job NAME; its checkpoints stay, and the same training goes on from them."""
    aws = session.aws()
    _show_job(stop_job(aws, name), aws.region)
