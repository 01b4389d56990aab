"""The planning options that several commands share, and how they become a Plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from peagle import api
from peagle.catalog.find import UNKNOWN_DRAFTER
from peagle.catalog.schema import Catalog
from peagle.cli import completion as completing
from peagle.cli.output.console import show_findings, where_text
from peagle.errors import Fix, NotFound, Refused, UserError
from peagle.findings import Finding, errors
from peagle.planning import Options, Plan
from peagle.text import parse_duration

if TYPE_CHECKING:
    from peagle.weights.locations import AwsOf


def duration(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """A callback: the option's value as seconds. Raises BadParameter."""
    try:
        return None if value is None else parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def catalog_of(ctx: click.Context) -> Path | None:
    """The folder of the user's own catalogue, from ``peagle --catalog``."""
    folder = ctx.find_root().obj
    return Path(folder) if folder else None


_CATALOG = "peagle.catalog"
"""Key in click's ``Context.meta`` of the catalogue that the command has loaded."""


def command_catalog(ctx: click.Context | None = None) -> Catalog:
    """The catalogue of the running command: the bundled one with that of ``peagle --catalog``."""
    ctx = ctx or click.get_current_context()
    if _CATALOG not in ctx.meta:
        ctx.meta[_CATALOG] = api.load_catalog(catalog_of(ctx))
    catalog: Catalog = ctx.meta[_CATALOG]
    return catalog


def names_own_image(plan: Plan) -> bool:
    """Whether the plan's image is the user's own, not one of AWS's in the catalogue."""
    return api.is_own_image(plan, command_catalog().runtimes)


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
    given = {n: value for n, value in chosen.items() if value is not None and value is not False}
    if is_plan_file(pair):
        return _from_file(Path(pair), given)
    if "drafter" in given:
        given |= api.own_head(given["drafter"], aws_of)
    speculation = not given.pop("no_speculation", False)
    options = Options(pair=pair, speculation=speculation, **given)
    try:
        return api.make_plan(options, catalog)
    except NotFound as error:
        hint = _drafter_hint(options.drafter) if error.code == UNKNOWN_DRAFTER else ""
        raise NotFound(
            error.message, hint or Fix(error.fix, tuple(error.command)), error.code
        ) from None


def _drafter_hint(drafter: str | None) -> str:
    """What the user may have meant by an unknown ``--drafter``; empty without a guess."""
    if drafter == "hf":
        return "leave it out: the pair's own head comes from the hub; hf is for check and fit"
    if drafter is not None and Path(drafter).is_dir():
        return f"for the folder of that name use --drafter ./{drafter}"
    return ""


def _from_file(path: Path, given: dict[str, Any]) -> Plan:
    plan = api.read_plan(path)
    region = given.pop("region", plan.region)
    if given or region != plan.region:
        flag = f"--{next(iter(given), 'region').replace('_', '-')}"
        raise UserError(
            f"{flag} cannot be combined with a plan file ({path})",
            f"leave {flag} out, or create a new plan with `peagle plan PAIR ... --out FILE`",
        )
    return plan


_LIMIT = click.FloatRange(min=0, min_open=True)

_OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("--name", {"help": "Name of the endpoint.  [default: from the pair]"}),
    (
        "--instance-type",
        {
            "help": "SageMaker instance type.  [default: the cheapest that fits]",
            "shell_complete": completing.instance_types,
        },
    ),
    (
        "--instance-count",
        {
            "type": click.IntRange(1),
            "help": "Number of instances.  "
            "[default: 1, or as many as reach --min-tokens-per-second]",
        },
    ),
    (
        "--min-tokens-per-second",
        {
            "type": _LIMIT,
            "metavar": "N",
            "help": "Output tokens per second that the whole endpoint must reach at --concurrency.",
        },
    ),
    (
        "--max-price-per-hour",
        {
            "type": _LIMIT,
            "metavar": "USD",
            "help": "Maximum total price per hour.",
        },
    ),
    (
        "--k",
        {
            "type": int,
            "help": "Tokens drafted per step.  "
            "[default: the fastest measured, or the model card's]",
        },
    ),
    ("--max-model-len", {"type": click.IntRange(1), "help": "Longest context, in tokens."}),
    (
        "--concurrency",
        {"type": click.IntRange(1), "help": "Concurrent requests, for the whole endpoint."},
    ),
    ("--no-speculation", {"is_flag": True, "help": "Serve the target alone."}),
    (
        "--drafter",
        {"help": "Drafter in the catalogue, or your own head: s3://..., hub id, folder."},
    ),
    (
        "--model-source",
        {"help": "s3:// prefix that holds the target's weights.  [default: the hub]"},
    ),
    (
        "--weights-by",
        {
            "type": click.Choice(("mount", "stream")),
            "help": "How weights in S3 reach the engine: mount (SageMaker copies them) or stream "
            "(vLLM reads S3 at startup).  [default: mount]",
        },
    ),
    (
        "--vllm",
        {
            "help": "vLLM version.  [default: the catalogue's]",
            "shell_complete": completing.versions,
        },
    ),
    ("--image", {"help": "Container image.  [default: AWS's image of that version]"}),
    (
        "--baked-weights",
        {"is_flag": True, "help": "The --image contains the weights; none are mounted."},
    ),
    (
        "--region",
        {
            "envvar": ["AWS_REGION", "AWS_DEFAULT_REGION"],
            "help": "AWS region.  [env: AWS_REGION; default: us-east-1]",
            "shell_complete": completing.regions,
        },
    ),
)


def plan_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument PAIR|PLAN and all planning options to a command, which receives ``plan``."""

    @click.pass_context
    @wraps(command)
    def with_plan(ctx: click.Context, /, pair: str, **given: Any) -> Any:
        chosen = {field: given.pop(field) for field in map(_field, dict(_OPTIONS))}
        if is_plan_file(pair) and ctx.get_parameter_source("region") is ParameterSource.ENVIRONMENT:
            # A plan file has its own region; AWS_REGION does not override it.
            chosen["region"] = None
        if ctx.params.get("online"):  # only `peagle plan` has it
            from peagle.cli.online import online_plan

            plan = online_plan(ctx, pair, chosen)
        else:
            plan = resolve_plan(pair, chosen, command_catalog(ctx))
        return ctx.invoke(command, plan=plan, **given)

    decorated: Callable[..., Any] = with_plan
    for name, settings in reversed(_OPTIONS):
        decorated = click.option(name, **settings)(decorated)
    argument = click.argument("pair", metavar="PAIR|PLAN", shell_complete=completing.pairs)
    return argument(decorated)


def refuse_errors(findings: Sequence[Finding]) -> None:
    """Show the findings; raise Refused with the first error, which is not shown twice."""
    first = errors(findings)[:1]
    show_findings(finding for finding in findings if finding not in first)
    raise_first_error(findings)


def raise_first_error(findings: Sequence[Finding]) -> None:
    """Raise Refused with the first error among the findings, if there is one."""
    for finding in errors(findings)[:1]:
        raise Refused(
            f"{where_text(finding.where)}: {finding.message}",
            Fix(finding.fix, finding.command or ()),
            code=finding.code,
        )


def _field(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")
