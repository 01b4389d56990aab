"""``peagle train --sagemaker``, and ``peagle train status``, ``logs`` and ``stop`` of its jobs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
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
from peagle.catalog.loading import load_training
from peagle.catalog.schema import Catalog
from peagle.cli.context import is_typed
from peagle.cli.options import (
    OUTPUT,
    add_options,
    catalog_of,
    command,
    command_catalog,
    complete_instance_types,
    option,
    refuse_errors,
    yes_option,
)
from peagle.cli.plan_options import field_options, given_options
from peagle.cli.session import Session, cloud_options
from peagle.cli.view.console import (
    StatusLine,
    confirm,
    print_json,
    print_result,
    print_status,
    wants_json,
)
from peagle.cli.view.train import job_text, print_job, print_job_request
from peagle.errors import Fix, NotFound, OptionMissing, OptionsConflict, PeagleError, UserError
from peagle.planning.company import Company, check_company
from peagle.planning.runtime import price_in
from peagle.store import write_text
from peagle.text import plain
from peagle.train.data import TrainingData
from peagle.train.estimate import TrainingOptions, TrainingPlan, measure_data, plan_training
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
from peagle.train.recipe import Recipe
from peagle.train.result import require_empty
from peagle.weights.own_target import is_on_hub, is_own_target
from peagle_serve.contract import ML_ROOT, ROOT_VARIABLE, is_s3_uri

_INTERRUPTED = 130

_USUAL_HOURS, _MOST_HOURS = 24.0, 120.0
"""The runtime where none is known, and AWS's default limit, which it raises on request."""

_COMPANY = ("subnets", "security_groups", "network_isolation", "kms_key", "tags")
_JOB_OPTIONS = (
    option("--sagemaker", "Train as a job on SageMaker; HEAD is downloaded from there.", bool),
    option("--instance-type", "Instance type of the job.  [default: that of `peagle train plan`]",
           shell_complete=complete_instance_types),
    option("--spot", "A job on spot instances, which goes on after an interruption.", bool),
    option("--max-hours", "Longest runtime.  [default: as estimated]", click.FloatRange(0.1, 672)),
    option("--image", "Image of the job, which has the toolkit and its trainer."),
    option("--role", "Execution role: ARN or name.  [default: found automatically]",
           envvar="PEAGLE_ROLE"),
    option("--bucket", "S3 bucket of data, checkpoints and heads.  [default: "
           "peagle-sagemaker-REGION-ACCOUNT, created if needed]"),
    option("--region", "AWS region of the job, and of capture:ENDPOINT.  [env: AWS_REGION; "
           "default: us-east-1]"),
)  # fmt: skip
_OPTION_NAMES = (*(str(option.name) for option in _JOB_OPTIONS), *_COMPANY)


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a job, which ``take_job_options`` takes, in a group of the help."""
    command = add_options(_JOB_OPTIONS)(field_options(*_COMPANY)(command))
    for each in vars(command)["__click_params__"]:
        if each.name in _OPTION_NAMES:
            each.group = "SageMaker"
    decorated: Callable[..., Any] = yes_option(command)
    return decorated


def take_job_options(ctx: click.Context, parameters: dict[str, Any]) -> dict[str, Any]:
    """The options of the job, taken out of the command's ``parameters``. Raises OptionMissing for
    an option of a job without one; the data may need the region."""
    options = {name: parameters.pop(name) for name in _OPTION_NAMES}
    of_job = {*_OPTION_NAMES} - {"region"} if not options["sagemaker"] else ()
    for parameter in ctx.command.params:
        if parameter.name in of_job and is_typed(ctx, parameter.name):
            raise OptionMissing(f"{parameter.opts[0]} is of a job on SageMaker", "add --sagemaker")
    return options


def _check_target(ctx: click.Context, pair: str) -> None:
    """Raise UserError for a target that a job cannot read."""
    if folder := catalog_of(ctx):
        message = f"the image of a job has the bundled catalogue, not {folder}"
        raise OptionsConflict(message, "name the target's Hub id or s3:// address, without it")
    if is_own_target(command_catalog(), pair) and not is_s3_uri(pair) and not is_on_hub(pair):
        fix = "copy it to S3 with aws s3 sync, and name s3://BUCKET/FOLDER"
        raise UserError(f"a job cannot read {pair} on this machine", fix, "job-local-target")


def train_on_sagemaker(
    ctx: click.Context,
    session: Session,
    catalog: Catalog,
    data: TrainingData,
    recipe: Recipe,
    options: Mapping[str, Any],
) -> None:
    """Start the job that trains the head, or find the one that does, wait for its end, and download
    the head. Ctrl-C leaves the job running. ``catalog`` has the target."""
    pair, region = ctx.params["pair"], options["region"] or default_region()
    _check_target(ctx, pair)
    require_empty(ctx.params["output"])
    planned = plan_training(
        TrainingOptions(pair=pair, instance_type=options["instance_type"], region=region),
        measure_data(data.train, recipe),
        recipe,
        catalog,
        load_training(None),
    )
    arguments = job_arguments(pair, ctx.params["output"].resolve().name, _repeat_options(ctx))
    company = Company(**given_options({name: options[name] for name in _COMPANY}))
    check_company(company)
    with session.starting(region) as aws:
        bucket = options["bucket"] or default_bucket(aws.account, region)
        run = make_run(planned.target, arguments, data, bucket)
        name = find_running_job(aws, run.name)
        if name is None:
            job = _choose_settings(aws, catalog, pair, planned, options, company)
            name = run.job_name(time.time())
            request = training_job_request(name, run, pair, arguments, job)
            print_job_request(request, job, planned, session.where(region))
            refuse_errors(tuple(job_findings(aws, job)))
            fix = Fix("review the job above, then pass --yes", options=("--yes",))
            confirm("Start this job?", "not started", fix)
            start_job(aws, run, data, request, company)
        else:
            print_status(f"The job {name} trains this head already.")
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


_REPEATED = (
    "keep_answers", "epochs", "mask_token_id", "k", "layers", "sequence_length", "answer_tokens",
    "settings",
)  # fmt: skip


def _repeat_options(ctx: click.Context) -> list[str]:
    """The options of the running command that its job has too, as words."""
    words: list[str] = []
    chosen = given_options({name: ctx.params[name] for name in _REPEATED})
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
        with StatusLine() as status:
            line = ""
            for job, tail in follow_job(aws, name):
                line = next((event.message for event in reversed(tail.drain())), line)
                status.show_line(job_text(job, _usd(job, aws.region), line))
            status.show_line(f"Downloading {job.artifact}")
            fetch_head(aws, job, output)
    except KeyboardInterrupt:
        print_status(f"The job {name} goes on. To wait for it again, repeat the command; to end it",
                     f"peagle train stop {name}")  # fmt: skip
        ctx.exit(_INTERRUPTED)
    _show_job(job, aws.region, output.absolute())


def _usd(job: TrainingJob, region: str) -> float | None:
    """What the job costs until now, at the price of hosting; ``None`` where that is unknown."""
    price = None
    with suppress(NotFound):
        price = price_in(find_instance(command_catalog().instances, job.instance_type), region)
    return price.usd_per_hour * job.billable_seconds / 3600 if price else None


def _show_job(job: TrainingJob, region: str, output: Path | None = None) -> None:
    usd = _usd(job, region)
    document = {**plain(job), "usd": usd, "head": str(output) if output else None}
    print_result(document, lambda _: print_job(job, usd, output))


@command("peagle train status NAME", "peagle train status NAME -o head", name="status")
@click.argument("name")
@option("-o --output HEAD", "Wait for the end of the job, and download its head.", OUTPUT)
@cloud_options
@click.pass_context
def status(ctx: click.Context, /, name: str, session: Session, output: Path | None) -> None:
    """Show the training job NAME, or wait for it and download its head."""
    aws = session.aws()
    if output is not None:
        require_empty(output)
        return _fetch_when_ended(ctx, aws, name, output)
    return _show_job(describe_job(aws, name), aws.region)


@command("peagle train logs NAME --follow", name="logs")
@click.argument("name")
@option("--follow -f", "Follow the log until the job ends, or Ctrl-C.", bool)
@cloud_options
@click.pass_context
def logs(ctx: click.Context, /, name: str, session: Session, follow: bool) -> None:
    """Show the CloudWatch log of the training job NAME."""
    looks = islice(follow_job(session.aws(), name), None if follow else 1)
    events = (event for _, tail in looks for event in tail.new())
    if wants_json():
        return print_json({"name": name, "events": [plain(event) for event in events]})
    try:
        for event in events:
            click.echo(event.message)
    except KeyboardInterrupt:
        ctx.exit(_INTERRUPTED)
    return None


@command("peagle train stop NAME", name="stop")
@click.argument("name")
@cloud_options
def stop(name: str, session: Session) -> None:
    """Stop the training job NAME; its checkpoints stay, and the same training goes on from them."""
    aws = session.aws()
    _show_job(stop_job(aws, name), aws.region)


COMMANDS = (status, logs, stop)
