"""The planning options, and how PAIR|PLAN with these options becomes a Plan."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from peagle import api
from peagle.catalog.find import UNKNOWN_DRAFTER
from peagle.catalog.schema import Catalog
from peagle.cli.options import (
    LONGEST_CONTEXT,
    REGION_VARIABLES,
    REQUESTS,
    TOKENS,
    USD,
    command_catalog,
    complete_instance_type,
    complete_pair,
    complete_region,
    complete_version,
    duration,
    settings_option,
    variables_option,
)
from peagle.cli.own_target import account_of, reader_of_heads, with_own_target
from peagle.errors import Fix, NotFound, UserError
from peagle.planning import Options, Plan
from peagle.planning.plan import Overrides
from peagle.planning.runtime import DEFAULT_REGION
from peagle.s3uri import is_s3_uri

if TYPE_CHECKING:
    from peagle.weights.layout import AwsOf

_LIMIT = click.FloatRange(min=0, min_open=True)


_PLAN_OPTIONS = (
    click.option("--name", help="Name of the endpoint.  [default: derived from the pair]"),
    click.option(
        "--instance-type",
        help="SageMaker instance type.  [default: the lowest cost per token]",
        shell_complete=complete_instance_type,
    ),
    click.option(
        "--instance-count",
        type=click.IntRange(1),
        help="Number of instances.  [default: as many as the load needs]",
    ),
    click.option(
        "--min-tokens-per-second",
        type=_LIMIT,
        metavar="N",
        help="Required output tokens per second of the whole endpoint, at --concurrency.",
    ),
    click.option(
        "--max-price-per-hour", type=USD, metavar="USD", help="Maximum total price per hour."
    ),
    click.option(
        "--k",
        type=int,
        help="Tokens drafted per step.  [default: the fastest, or the model card's]",
    ),
    click.option("--max-model-len", type=TOKENS, metavar="TOKENS", help=LONGEST_CONTEXT),
    click.option(
        "--concurrency",
        type=REQUESTS,
        metavar="REQUESTS",
        help="Concurrent requests, for the whole endpoint.",
    ),
    click.option(
        "--prompt-tokens",
        type=TOKENS,
        metavar="TOKENS",
        help="Tokens of a usual prompt.  [default: 2048, or what fits]",
    ),
    click.option(
        "--output-tokens",
        type=TOKENS,
        metavar="TOKENS",
        help="Tokens of a usual answer.  [default: 256, or what fits]",
    ),
    click.option(
        "--slo",
        metavar="TIMES",
        callback=lambda _, __, text: None if text is None else api.parse_slo(text),
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
        type=click.Choice(("mount", "stream")),
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
        help="An archive of `peagle warm` that starts may restore.  [default: those beside the "
        "weights when deploying]",
    ),
    click.option(
        "--allow-unpinned-warm",
        is_flag=True,
        help="Restore any archive beside the weights: anyone who may write there runs code.",
    ),
    click.option(
        "--region",
        envvar=REGION_VARIABLES,
        help=f"AWS region.  [env: AWS_REGION; default: {DEFAULT_REGION}]",
        shell_complete=complete_region,
    ),
)

PLAN_FIELDS = {*Options.model_fields, "no_speculation", "verdict"}
"""The parameters that these options have in click."""


def plan_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument PAIR|PLAN and all planning options to a command, which receives ``plan``."""

    @click.pass_context
    @wraps(command)
    def with_plan(ctx: click.Context, /, pair: str, **given: Any) -> Any:
        chosen = {name: given.pop(name) for name in PLAN_FIELDS & given.keys()}
        return ctx.invoke(command, plan=planned(ctx, pair, chosen), **given)

    decorated: Callable[..., Any] = with_plan
    for option in reversed(_PLAN_OPTIONS):
        decorated = option(decorated)
    argument = click.argument("pair", metavar="PAIR|PLAN", shell_complete=complete_pair)
    return argument(decorated)


def planned(ctx: click.Context, pair: str, chosen: dict[str, Any]) -> Plan:
    """The plan in the file ``pair``, or the plan for that pair and those options: with the
    command's catalogue and, if it has ``--online``, with what AWS and the Hub answer."""
    if is_plan_file(pair) and ctx.get_parameter_source("region") is ParameterSource.ENVIRONMENT:
        # A plan file has its own region; AWS_REGION does not override it.
        chosen = {**chosen, "region": None}
    if is_plan_file(pair):
        reader = None
    else:
        chosen = with_own_target(ctx, pair, chosen)
        reader = reader_of_heads(ctx, pair)
    if ctx.params.get("online"):  # only `peagle plan` has it
        return _online_plan(ctx, pair, chosen, reader)
    return resolve_plan(pair, chosen, command_catalog(ctx), reader)


def plan_on_type(ctx: click.Context, instance_type: str) -> Plan:
    """The plan of the command's PAIR and planning options on another instance type."""
    chosen = {name: ctx.params[name] for name in PLAN_FIELDS & ctx.params.keys()}
    pair = chosen.pop("pair")
    chosen = {**chosen, "instance_type": instance_type}
    if is_plan_file(pair):
        return resolve_plan(pair, chosen, command_catalog(ctx))
    chosen = with_own_target(ctx, pair, chosen)
    return resolve_plan(pair, chosen, command_catalog(ctx), reader_of_heads(ctx, pair))


def _online_plan(
    ctx: click.Context, pair: str, chosen: dict[str, Any], reader: AwsOf | None
) -> Plan:
    """The plan for PAIR|PLAN and the chosen options, with today's price, the Hub's commits, and
    findings about quota and weights. Of a plan file only the price and missing pins change.

    Raises what planning raises, and UserError for a wrong profile.
    """
    account = account_of(ctx)
    catalog = command_catalog(ctx)
    saved = resolve_plan(pair, chosen, catalog) if is_plan_file(pair) else None
    aws = account.connect(saved.region if saved else chosen.get("region") or DEFAULT_REGION)
    # Prices and quotas are optional, so AWS must answer soon; the sandbox may still be loading.
    limited = aws if account.sandbox else aws.best_effort()
    if saved:
        return api.live_price_of_plan(limited, catalog, saved)

    pinned = api.pin_revisions(catalog, resolve_plan(pair, chosen, catalog, reader))
    chosen = chosen | ({"drafter": pinned.drafter} if pinned.drafter else {})

    def planned(catalog: Catalog, reads_head: bool) -> Plan:
        return resolve_plan(pair, chosen, catalog, (lambda: aws) if reads_head else reader)

    head_in_s3 = is_s3_uri(chosen.get("drafter") or "")
    made = api.plan_with_live_prices(limited, pinned.catalog, planned, head_in_s3)
    return pinned.add_to(made)


def is_plan_file(pair: str) -> bool:
    """Whether PAIR|PLAN is a plan file: pairs do not end in ``.json``."""
    return pair.endswith(".json")


def resolve_plan(
    pair: str,
    chosen: dict[str, Any],
    catalog: Catalog,
    aws_of: AwsOf | None = None,
) -> Plan:
    """The plan in the file ``pair``, or the plan for that pair and those options.

    With ``aws_of`` the user's own head is read from any location, else only from a folder.
    """
    given = {
        name: value
        for name, value in chosen.items()
        if value is not None and value is not False and value not in ({}, ())
    }
    if is_plan_file(pair):
        return _read_plan(Path(pair), given)
    if "drafter" in given:
        given |= api.own_head(given["drafter"], aws_of)
        if aws_of and is_s3_uri(given["drafter"]):
            pair = api.copied_pair(aws_of(), given["drafter"])
            given["drafter_checkpoint"] = replace(given["drafter_checkpoint"], pair=pair)
    verdict = given.pop("verdict", None)
    speculation = not given.pop("no_speculation", False)
    options = Options(pair=pair, speculation=speculation, **given)
    try:
        if verdict is not None:
            return api.plan_by_verdict(options, api.read_verdict(verdict), verdict, catalog)
        return api.plan(options, catalog)
    except NotFound as error:
        hint = _drafter_hint(options.drafter) if error.code == UNKNOWN_DRAFTER else ""
        fix = hint or Fix(error.fix, tuple(error.command))
        raise NotFound(error.message, fix, error.code) from None


def _drafter_hint(drafter: str | None) -> str:
    """What the user may have meant by an unknown ``--drafter``; empty without a guess."""
    if drafter == "hf":
        return "omit it: the pair's own head comes from the Hub; hf is for check and fit"
    return api.location_hint(drafter or "")


def _read_plan(path: Path, given: dict[str, Any]) -> Plan:
    plan = api.read_plan(path)
    region = given.pop("region", plan.region)
    if given or region != plan.region:
        typed = _as_typed(given or {"region": region})
        flag = typed[0]
        raise UserError(
            f"{flag} cannot be combined with a plan file ({path})",
            Fix(
                f"omit {flag}, or create a new plan",
                ("peagle", "plan", "PAIR", *typed, "--output", "FILE"),
            ),
        )
    return plan


def _as_typed(given: dict[str, Any]) -> tuple[str, ...]:
    """The first of these options on a command line."""
    option, value = next(iter(given.items()))
    if option in Overrides.model_fields:
        return tuple(api.override_arguments(Overrides(**{option: value})))
    flag = f"--{option.replace('_', '-')}"
    if isinstance(value, tuple):
        return (flag, *value[:1])
    return (flag,) if value is True else (flag, str(value))


def planning_options(without: Collection[str]) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: add the planning options to a command, except for parameters ``without``.

    The command calls ``resolve_plan`` itself, with ``planning_choices``.
    """

    def holder() -> None:
        """Takes the options, of which click keeps a list."""

    decorated: Callable[..., Any] = holder
    for option in _PLAN_OPTIONS:
        decorated = option(decorated)
    added = [one for one in vars(decorated)["__click_params__"] if one.name not in without]

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        vars(command).setdefault("__click_params__", []).extend(reversed(added))
        return command

    return add


def planning_choices(given: dict[str, Any]) -> dict[str, Any]:
    """The planning options among the parameters of a command."""
    fields = PLAN_FIELDS - {"pair"}
    return {name: value for name, value in given.items() if name in fields}
