"""The planning options of commands: what to plan, how it serves, what a company prescribes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import wraps
from pathlib import Path
from typing import Any, get_args

import click

from peagle.cli.options import (
    BATCH,
    LONGEST_CONTEXT,
    PLAN_FIELDS,
    REQUESTS,
    REQUESTS_AT_A_TIME,
    TOKENS,
    USD,
    Decimal,
    K,
    OneOf,
    Parsed,
    WholeNumber,
    cached_option,
    complete_instance_type,
    complete_pair,
    complete_region,
    complete_version,
    duration,
    objective,
    settings_option,
    shared_option,
    variables_option,
    workload_option,
)
from peagle.cli.planned import planned
from peagle.cli.project import image_from_option, project_options
from peagle.planning.company import parse_tags
from peagle.planning.operation_model import LONGEST_CAPTURE_DAYS
from peagle.planning.options import AUTO, RolloutKind
from peagle.planning.runtime import DEFAULT_REGION, REGION_VARIABLES
from peagle.text import sanitize


def parse_copies(text: str) -> int | str:
    """A number of engines, or ``auto``. Raises ValueError."""
    if text == AUTO:
        return AUTO
    if text.isascii() and text.isdecimal() and len(text) < 4 and int(text) > 0:
        return int(text)
    raise ValueError(f"{sanitize(text, 40)!r} is neither auto nor a number of engines")


copies_option = click.option(
    "--copies",
    type=Parsed("copies", parse_copies),
    metavar="N|auto",
    help="Engines on each instance, as an inference component; auto: as many as cost least per "
    "token, or one on all GPUs; 1: one, without a component.  [default: auto]",
)


SCALING_OPTIONS = (
    click.option(
        "--min-instances",
        type=WholeNumber(0),
        metavar="N",
        help="Fewest instances of an endpoint that scales.  [default: 1]",
    ),
    click.option(
        "--max-instances",
        type=WholeNumber(1),
        metavar="N",
        help="Scale automatically, up to this many instances; with --copies, the copies on them.",
    ),
    click.option(
        "--target-concurrency",
        type=REQUESTS_AT_A_TIME,
        metavar="REQUESTS",
        help="Requests at a time that scaling gives each instance, or each copy.  [default: the "
        "most that meet --slo without queueing, from the performance model]",
    ),
    click.option(
        "--scale-to-zero",
        is_flag=True,
        help="Run no instance while there are no requests; the first one then waits. Makes an "
        "inference component, also for a single copy.",
    ),
)
"""For ``plan_options``; the options are fields of ``Options``."""


ROLLOUT_OPTIONS = (
    click.option(
        "--rollout",
        type=OneOf(get_args(RolloutKind)),
        help="How updates move traffic to new instances, with alarms that undo them; the one on "
        "--slo ttft sees streamed requests only.  "
        "[default: SageMaker's, without alarms]",
    ),
    click.option(
        "--rollout-step",
        metavar="SIZE",
        help="Instances of one step, such as 2 or 25%.  [default: 5%, canary 10%, linear 25%]",
    ),
    click.option(
        "--baking-time",
        metavar="DURATION",
        callback=duration,
        help="Time for alarms to act after each step; 1h at most.  [default: 10m]",
    ),
)


OBSERVE_OPTIONS = (
    click.option(
        "--observe",
        is_flag=True,
        help="Create a CloudWatch dashboard and alarms, and keep the endpoint's log for 30 days "
        "only. The alarm on --slo ttft sees streamed requests only.",
    ),
    click.option(
        "--log-retention",
        type=WholeNumber(1),
        metavar="DAYS",
        help="How long CloudWatch keeps the endpoint's log.  [default: 30 with --observe]",
    ),
    click.option(
        "--alarm-topic",
        metavar="ARN",
        help="SNS topic that the alarms of --observe and --rollout notify.",
    ),
    click.option(
        "--capture-data",
        metavar="S3_URI",
        help="Copy prompts and answers to this s3:// folder (SageMaker's data capture).",
    ),
    click.option(
        "--capture-percent",
        type=WholeNumber(1, 100),
        metavar="PERCENT",
        help="Share of the requests to capture.  [default: 100]",
    ),
    click.option(
        "--capture-kms-key",
        metavar="KEY",
        help="KMS key for captured data.  [default: --kms-key, else S3's own key]",
    ),
    click.option(
        "--capture-retention",
        type=WholeNumber(0, LONGEST_CAPTURE_DAYS),
        metavar="DAYS",
        help="When S3 deletes captured data; 0: when the bucket's own rules do.  [default: 30]",
    ),
)


LIMIT_OPTIONS = (
    click.option(
        "--ttl",
        metavar="DURATION",
        callback=duration,
        help="Delete the endpoint after this time, such as 8h or 2d, counted from this deploy: "
        "deploying again with --ttl moves the end, without it keeps it.",
    ),
    click.option(
        "--budget",
        type=USD,
        metavar="USD",
        help="Delete the endpoint when it has cost this much since its creation, at the price of "
        "the most instances. With --ttl, the earlier end counts. A later deploy or scale to a "
        "higher price moves the end to an earlier time, and never to a later one.",
    ),
    click.option("--no-limit", is_flag=True, help="Remove the end time of an earlier deploy."),
)


class _Ids(click.ParamType):  # type: ignore[type-arg]
    """Ids such as ``subnet-1,subnet-2``: each once, in the order given."""

    name = "text"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """The ids; planning checks them."""
        words = value if isinstance(value, tuple) else str(value).split(",")
        return tuple(filter(None, (word.strip() for word in words)))


class _Tag(click.ParamType):  # type: ignore[type-arg]
    """``KEY=VALUE``. A variable holds several with commas, which no tag has."""

    name = "text"
    envvar_list_splitter = ","

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value)


_IDS = _Ids()


kms_key_option = click.option(
    "--kms-key",
    metavar="KEY",
    envvar="PEAGLE_KMS_KEY",
    help="KMS key (ARN, id or alias) of storage volumes and uploads.  [env: PEAGLE_KMS_KEY]",
)
"""``--kms-key``."""


def tag_option(flag: str = "--tag") -> Callable[..., Any]:
    """``--tag KEY=VALUE``: ``tags``, by key."""
    return click.option(
        flag,
        "tags",
        type=_Tag(),
        metavar="KEY=VALUE",
        multiple=True,
        envvar="PEAGLE_TAGS",
        callback=lambda _, __, given: parse_tags(given),
        help="A tag on everything that is created. Repeatable.  [env: PEAGLE_TAGS, with commas]",
    )


def company_options(tag_flag: str = "--tag") -> tuple[Callable[..., Any], ...]:
    """The options, each with a variable of the environment for all commands of a company."""
    return (
        click.option(
            "--subnets",
            type=_IDS,
            metavar="ID,...",
            envvar="PEAGLE_SUBNETS",
            help="Subnets of your VPC that containers are attached to, with commas.  "
            "[env: PEAGLE_SUBNETS]",
        ),
        click.option(
            "--security-groups",
            type=_IDS,
            metavar="ID,...",
            envvar="PEAGLE_SECURITY_GROUPS",
            help="Their security groups, with commas.  [env: PEAGLE_SECURITY_GROUPS]",
        ),
        click.option(
            "--network-isolation",
            is_flag=True,
            envvar="PEAGLE_NETWORK_ISOLATION",
            help="Containers without any network; weights come from S3 or the image.",
        ),
        kms_key_option,
        tag_option(tag_flag),
        click.option(
            "--name-prefix",
            metavar="TEXT",
            envvar="PEAGLE_NAME_PREFIX",
            help="Beginning of the names of what is created.  "
            "[env: PEAGLE_NAME_PREFIX; default: peagle-]",
        ),
        click.option(
            "--permissions-boundary",
            metavar="ARN",
            envvar="PEAGLE_PERMISSIONS_BOUNDARY",
            help="Policy that bounds roles that are created.  [env: PEAGLE_PERMISSIONS_BOUNDARY]",
        ),
    )


_SPEED = Decimal("a number of tokens per second above 0, such as 500", min=0, min_open=True)


_PLAN_OPTIONS = (
    click.option("--name", help="Name of the endpoint.  [default: derived from the pair]"),
    click.option(
        "--instance-type",
        help="SageMaker instance type.  [default: the lowest cost per token]",
        shell_complete=complete_instance_type,
    ),
    click.option(
        "--instance-count",
        type=WholeNumber(1),
        help="Number of instances.  [default: as many as the load needs]",
    ),
    copies_option,
    click.option(
        "--min-tokens-per-second",
        type=_SPEED,
        metavar="N",
        help="Required output tokens per second of the whole endpoint, at --concurrency.",
    ),
    click.option(
        "--max-price-per-hour", type=USD, metavar="USD", help="Maximum total price per hour."
    ),
    click.option(
        "--k",
        type=K,
        help="Tokens drafted per step.  [default: the fastest, or the model card's]",
    ),
    click.option("--max-model-len", type=TOKENS, metavar="TOKENS", help=LONGEST_CONTEXT),
    click.option(
        "--concurrency",
        type=REQUESTS,
        metavar="REQUESTS",
        help="Concurrent requests, for the whole endpoint.",
    ),
    workload_option,
    click.option(
        "--prompt-tokens",
        type=TOKENS,
        metavar="TOKENS",
        help="Tokens of a usual prompt.  [default: 2048, or what fits]",
    ),
    cached_option,
    shared_option,
    click.option(
        "--output-tokens",
        type=TOKENS,
        metavar="TOKENS",
        help="Tokens of a usual answer.  [default: 256, or what fits]",
    ),
    click.option(
        "--requests",
        type=BATCH,
        metavar="N",
        help="Plan a batch of so many requests, such as 1m: the lowest total cost decides.",
    ),
    click.option(
        "--within",
        metavar="DURATION",
        callback=duration,
        help="With --requests: finish the batch in this time, such as 8h.",
    ),
    click.option(
        "--slo",
        metavar="TIMES",
        callback=objective,
        help="Longest mean times in seconds: ttft=0.5,itl=0.02 (first token, next output).",
    ),
    click.option("--no-speculation", is_flag=True, help="Serve the target alone."),
    click.option(
        "--drafter", help="Drafter in the catalogue, or your own head: s3://..., Hub id, folder."
    ),
    click.option(
        "--verdict",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Take drafter and K from this file of `peagle verdict`.",
    ),
    click.option(
        "--model-source",
        help="s3:// prefix that holds the target's weights.  [default: the Hub]",
    ),
    click.option(
        "--weights-by",
        type=OneOf(("mount", "stream")),
        help="How weights in S3 reach the engine: mount (SageMaker copies them) or stream "
        "(vLLM reads S3 at startup).  [default: mount]",
    ),
    click.option(
        "--vllm",
        help="vLLM version.  [default: the catalogue's]",
        shell_complete=complete_version,
    ),
    click.option("--image", help="Container image.  [default: AWS's image of that version]"),
    click.option(
        "--baked-weights",
        is_flag=True,
        help="--image contains the weights; mount none.",
    ),
    settings_option("An argument of vLLM in place of the plan's; an empty VALUE leaves one out."),
    variables_option("A variable of the container; not for secrets, which DescribeModel shows."),
    click.option(
        "--ami",
        help="Host AMI, which determines the GPU driver; `default` is SageMaker's own.  "
        "[default: the AMI that the image requires]",
    ),
    click.option(
        "--startup-timeout",
        metavar="DURATION",
        callback=duration,
        help="Time for the engine to start, such as 30m; 1h at most.  [default: from the weights]",
    ),
    click.option(
        "--download-timeout",
        metavar="DURATION",
        callback=duration,
        help="Time for SageMaker to copy weights from S3, such as 30m; 1h at most.",
    ),
    click.option(
        "--warm-sha256",
        multiple=True,
        metavar="SHA256",
        help="An archive of `peagle warm` that starts may restore.  [default: those next to the "
        "weights when deploying]",
    ),
    click.option(
        "--allow-unpinned-warm",
        is_flag=True,
        help="Restore any archive next to the weights: anyone who may write there runs code.",
    ),
    *ROLLOUT_OPTIONS,
    *LIMIT_OPTIONS,
    *OBSERVE_OPTIONS,
    click.option(
        "--region",
        envvar=REGION_VARIABLES,
        help=f"AWS region.  [env: AWS_REGION; default: {DEFAULT_REGION}]",
        shell_complete=complete_region,
    ),
    *SCALING_OPTIONS,
)


def plan_options(command: Callable[..., Any], tag_flag: str | None = "--tag") -> Callable[..., Any]:
    """Add the argument PAIR|PLAN and all planning options to a ``ProjectCommand``, which receives
    ``plan``. ``tag_flag`` is the option that adds tags; ``None`` leaves out what a company
    prescribes."""

    @click.pass_context
    @wraps(command)
    def with_plan(ctx: click.Context, /, pair: str, **given: Any) -> Any:
        chosen = {name: given.pop(name) for name in PLAN_FIELDS & given.keys()}
        return ctx.invoke(command, plan=planned(ctx, pair, chosen), **given)

    decorated: Callable[..., Any] = with_plan
    more = company_options(tag_flag) if tag_flag else ()
    for option in reversed((*_PLAN_OPTIONS, *more)):
        decorated = option(decorated)
    argument = click.argument(
        "pair", metavar="PAIR|PLAN", required=False, shell_complete=complete_pair
    )
    return argument(project_options()(image_from_option(decorated)))


def planning_options(without: Collection[str]) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: add the planning options to a command, except for parameters ``without``.

    The command calls ``resolve_plan`` itself, with ``planning_choices``.
    """

    def holder() -> None:
        """Takes the options, of which click keeps a list."""

    decorated: Callable[..., Any] = holder
    for option in (*_PLAN_OPTIONS, *company_options()):
        decorated = option(decorated)
    added = [one for one in vars(decorated)["__click_params__"] if one.name not in without]

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        vars(command).setdefault("__click_params__", []).extend(reversed(added))
        return command

    return add


def planning_choices(given: dict[str, Any], without: Collection[str]) -> dict[str, Any]:
    """The planning options among the parameters of a command, except for those ``without``."""
    fields = PLAN_FIELDS - {"pair", *without}
    return {name: value for name, value in given.items() if name in fields}
