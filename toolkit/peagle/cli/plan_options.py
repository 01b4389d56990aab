"""The planning options of commands."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import wraps
from pathlib import Path
from typing import Any

import click

from peagle.cli.company_options import company_options
from peagle.cli.options import (
    LONGEST_CONTEXT,
    PLAN_FIELDS,
    cached_option,
    complete_instance_type,
    complete_pair,
    complete_region,
    complete_version,
    settings_option,
    shared_option,
    variables_option,
    workload_option,
)
from peagle.cli.parameter_types import (
    BATCH,
    REQUESTS,
    TOKENS,
    USD,
    Decimal,
    K,
    OneOf,
    WholeNumber,
    duration,
    objective,
)
from peagle.cli.planned import planned
from peagle.cli.project import image_from_option, project_options
from peagle.cli.serving_options import (
    LIMIT_OPTIONS,
    OBSERVE_OPTIONS,
    ROLLOUT_OPTIONS,
    SCALING_OPTIONS,
    copies_option,
)
from peagle.planning.runtime import DEFAULT_REGION, REGION_VARIABLES

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
