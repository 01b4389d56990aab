"""From PAIR|PLAN and the options that were given to a Plan.

Options that several commands share, and how they become a Plan.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from peagle.catalog import load_catalog
from peagle.catalog.schema import Catalog
from peagle.cli import completion as completing
from peagle.cli.locations import AwsOf, own_head
from peagle.cli.output.console import show_findings
from peagle.errors import Fix, NotFound, Refused, UserError
from peagle.findings import Finding
from peagle.planning import Options, Plan, errors, make_plan
from peagle.render import read_plan
from peagle.render.image_names import is_own_image


def catalog_of(ctx: click.Context) -> Path | None:
    """The user's own catalogue folder, from ``peagle --catalog``."""
    folder = ctx.find_root().obj
    return Path(folder) if folder else None


def names_own_image(plan: Plan) -> bool:
    """Whether the plan of the running command names an image of the user's, and not AWS's as the
    bundled catalogue or the user's own has it."""
    catalog = load_catalog(catalog_of(click.get_current_context()))
    return is_own_image(plan, catalog.runtimes)


def is_plan_file(pair: str) -> bool:
    """Whether PAIR|PLAN is a plan: pairs do not end in ``.json``."""
    return pair.endswith(".json")


def resolve_plan(
    pair: str,
    chosen: dict[str, Any],
    own_catalog: Path | None,
    priced: Callable[[Catalog], Catalog] = lambda catalog: catalog,
    aws_of: AwsOf | None = None,
) -> Plan:
    """The plan in the file ``pair``, or the plan for that pair and those options.

    ``priced`` may put other prices into the catalogue before it is planned with. With ``aws_of``
    the user's own head is read wherever it lies, else only from a folder.
    """
    given = {n: value for n, value in chosen.items() if value is not None and value is not False}
    if is_plan_file(pair):
        return _from_file(Path(pair), given)
    if "drafter" in given:
        given |= own_head(given["drafter"], aws_of)
    speculation = not given.pop("no_speculation", False)
    options = Options(pair=pair, speculation=speculation, **given)
    catalog = priced(load_catalog(own_catalog))
    try:
        return make_plan(options, catalog)
    except NotFound as error:
        hint = _meant(options.drafter) if "drafter" in error.message else ""
        raise NotFound(error.message, hint or error.fix) from None


def _meant(drafter: str | None) -> str:
    """What a word after ``--drafter`` that is no drafter may have been meant for."""
    if drafter == "hf":
        return "leave it out: the pair's own head comes from the hub; hf is for check and fit"
    if drafter is not None and Path(drafter).is_dir():
        return f"for the folder of that name write --drafter ./{drafter}"
    return ""


def _from_file(path: Path, given: dict[str, Any]) -> Plan:
    plan = read_plan(path)
    region = given.pop("region", plan.region)
    if given or region != plan.region:
        name = next(iter(given), "region").replace("_", "-")
        raise UserError(
            f"{path} is a whole plan, so --{name} has no place",
            "make a new plan with `peagle plan PAIR ... --out FILE`",
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
            "help": "Instances.  [default: 1, or as many as make --min-tokens-per-second]",
        },
    ),
    (
        "--min-tokens-per-second",
        {
            "type": _LIMIT,
            "metavar": "N",
            "help": "Output tokens per second that the whole endpoint must make at --concurrency.",
        },
    ),
    (
        "--max-price-per-hour",
        {
            "type": _LIMIT,
            "metavar": "USD",
            "help": "What all instances together may cost per hour.",
        },
    ),
    (
        "--k",
        {
            "type": int,
            "help": "Tokens drafted per step.  [default: the fastest measured, or the card's]",
        },
    ),
    ("--max-model-len", {"type": click.IntRange(1), "help": "Longest context, in tokens."}),
    (
        "--concurrency",
        {"type": click.IntRange(1), "help": "Requests at the same time, of the whole endpoint."},
    ),
    ("--no-speculation", {"is_flag": True, "help": "Serve the target alone."}),
    (
        "--drafter",
        {"help": "Drafter of the catalogue, or a head of your own: s3://..., hub id, folder."},
    ),
    (
        "--model-source",
        {"help": "s3:// prefix that holds the target's weights.  [default: the hub]"},
    ),
    (
        "--weights-by",
        {
            "type": click.Choice(("mount", "stream")),
            "help": "How weights in S3 reach the engine: SageMaker copies them first, or the "
            "engine reads them while it starts.  [default: mount]",
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
        {"is_flag": True, "help": "The --image has the weights in it: none are mounted."},
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
    """Give a command the argument PAIR|PLAN and all planning options; it receives ``plan``."""

    @click.pass_context
    @wraps(command)
    def with_plan(ctx: click.Context, /, pair: str, **given: Any) -> Any:
        chosen = {field: given.pop(field) for field in map(_field, dict(_OPTIONS))}
        if is_plan_file(pair) and ctx.get_parameter_source("region") is ParameterSource.ENVIRONMENT:
            # A plan has its region, in which its image lies; the environment's is for others.
            chosen["region"] = None
        if ctx.params.get("online"):  # only `peagle plan` has it
            from peagle.cli.online import online_plan

            plan = online_plan(ctx, pair, chosen)
        else:
            plan = resolve_plan(pair, chosen, catalog_of(ctx))
        return ctx.invoke(command, plan=plan, **given)

    decorated: Callable[..., Any] = with_plan
    for name, settings in reversed(_OPTIONS):
        decorated = click.option(name, **settings)(decorated)
    argument = click.argument("pair", metavar="PAIR|PLAN", shell_complete=completing.pairs)
    return argument(decorated)


def refuse_errors(findings: Sequence[Finding]) -> None:
    """Show the findings; raise Refused with the first error, which is shown by that alone."""
    first = errors(findings)[:1]
    show_findings(finding for finding in findings if finding not in first)
    raise_first_error(findings)


def raise_first_error(findings: Sequence[Finding]) -> None:
    """Raise Refused with the first error among the findings, if there is one."""
    for finding in errors(findings)[:1]:
        raise Refused(
            f"{finding.where}: {finding.message}",
            Fix(finding.fix, finding.command or ()),
            code=finding.code,
        )


def peagle_words(ctx: click.Context) -> list[str]:
    """``peagle``, with the ``--catalog`` that was typed: without it the next command would not
    know the pair."""
    root = ctx.find_root()
    if root.get_parameter_source("catalog_folder") is not ParameterSource.COMMANDLINE:
        return ["peagle"]
    return ["peagle", "--catalog", str(root.params["catalog_folder"])]


def build_command(ctx: click.Context, *more: str) -> str:
    """The command that builds the image for what was asked here; ``more`` are its own options."""
    words = command_words(ctx, without=("--image", "--baked-weights"))
    return shlex.join([*peagle_words(ctx), "image", "build", *words, *more])


def command_words(ctx: click.Context, without: Collection[str] = ()) -> list[str]:
    """PAIR|PLAN and the planning options as they were given, for the command to type next."""
    words = [str(ctx.params["pair"])]
    for name, settings in _OPTIONS:
        field = _field(name)
        if name in without or ctx.get_parameter_source(field) is not ParameterSource.COMMANDLINE:
            continue
        value = ctx.params[field]
        value = str(value).removesuffix(".0") if isinstance(value, float) else str(value)
        words += [name] if settings.get("is_flag") else [name, value]
    return words


def _field(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")
