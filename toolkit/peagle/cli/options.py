"""Options that several commands share, the commands' catalogue, and refusal by a check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from peagle import api
from peagle.catalog.schema import Catalog
from peagle.cli.output.console import show_findings, where_text
from peagle.cli.parameter_types import REQUESTS, TOKENS, OneOf, OutputPath, WholeNumber
from peagle.errors import PeagleError, UserError
from peagle.findings import Finding, errors, refused
from peagle.planning import Options, Plan
from peagle.planning.runtime import DEFAULT_REGION, REGION_VARIABLES
from peagle.speed.models import PRESETS

_CATALOG_FILES = ("*/*.yaml", "*.yaml", "evidence/*.json")
"""Targets, tables and evidence."""

_CATALOG = "peagle.catalog"
"""Key in click's ``Context.meta`` of the catalogue that the command has loaded."""


repetitions_option = click.option(
    "--repetitions",
    type=WholeNumber(1, 50),
    default=3,
    show_default=True,
    help="Repetitions of each load, for the intervals.",
)
"""``--repetitions`` of a measurement."""

requests_option = click.option(
    "--requests",
    type=REQUESTS,
    metavar="N",
    help="Requests of each repetition.  [default: twice the concurrency, at least 4]",
)
"""``--requests`` of a measurement."""


_PRESETS = "; ".join(
    f"{name}: {size.prompt_tokens:,} + {size.output_tokens:,}"
    + (f", {size.cached_text}" if size.cached_prompt_tokens else "")
    for name, size in PRESETS.items()
)

workload_option = click.option(
    "--workload",
    type=OneOf(tuple(PRESETS)),
    help=f"Size of requests in tokens ({_PRESETS}).  [default: single prompts]",
)
"""``--workload`` of a plan or verdict."""

cached_option = click.option(
    "--cached-prompt-tokens",
    type=TOKENS,
    metavar="TOKENS",
    help="Tokens of the prompt that an earlier turn has left in the prefix cache.",
)
"""``--cached-prompt-tokens`` of a plan or verdict."""

shared_option = click.option(
    "--shared-prompt-tokens",
    type=TOKENS,
    metavar="TOKENS",
    help="Of the cached tokens, those with which all prompts begin: instructions, tools.",
)
"""``--shared-prompt-tokens`` of a plan or verdict."""


class _Output(click.Option):
    """An option with the earlier spelling ``--out``, which help does not show."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        return record and (record[0].replace(", --out ", " "), record[1])


def output_option(help: str) -> Callable[..., Any]:
    """``-o/--output FILE``: ``output``."""
    return click.option(
        "-o",
        "--output",
        "--out",
        "output",
        cls=_Output,
        type=OutputPath(dir_okay=False),
        metavar="FILE",
        help=help,
    )


PLAN_FIELDS = {*Options.model_fields, "no_speculation", "verdict"}
"""The parameters that planning options have in click."""


LONGEST_CONTEXT = "Longest context, in tokens, such as 8192 or 8k (1k is 1,024)."


def region_option(what: str) -> Callable[..., Any]:
    """``--region``, us-east-1 by default: the region of ``what``."""
    help_text = f"Region of {what}.  [env: AWS_REGION; default: {DEFAULT_REGION}]"
    return click.option("--region", envvar=REGION_VARIABLES, default=DEFAULT_REGION, help=help_text)


def yes_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--yes``."""
    return click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")(command)


def deploy_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of commands that create an endpoint: ``--role``, ``--yes``,
    ``--accept-unknown-price``."""
    role = "Execution role: ARN or name.  [default: found automatically]"
    price = "Deploy even if the price is unknown."
    command = click.option("--accept-unknown-price", is_flag=True, help=price)(command)
    return click.option("--role", envvar="PEAGLE_ROLE", help=role)(yes_option(command))


def catalog_of(ctx: click.Context) -> Path | None:
    """The folder of the user's own catalogue, from ``peagle --catalog``. Raises UserError for a
    folder without catalogue files."""
    folder = ctx.find_root().params.get("catalog_folder")
    if folder is None:
        return None
    if not any(file for pattern in _CATALOG_FILES for file in Path(folder).glob(pattern)):
        raise UserError(
            f"--catalog {folder}: the folder holds no catalogue files",
            "use a folder with targets such as ORGANIZATION/MODEL.yaml",
            code="no-catalogue",
        )
    return Path(folder)


def command_catalog(ctx: click.Context | None = None) -> Catalog:
    """The catalogue of the running command: the bundled one with that of ``peagle --catalog``."""
    ctx = ctx or click.get_current_context()
    if _CATALOG not in ctx.meta:
        ctx.meta[_CATALOG] = api.load_catalog(catalog_of(ctx))
    catalog: Catalog = ctx.meta[_CATALOG]
    return catalog


def set_command_catalog(ctx: click.Context, catalog: Catalog) -> None:
    """Give the running command this catalogue, such as one with the user's own target."""
    ctx.meta[_CATALOG] = catalog


def names_own_image(plan: Plan) -> bool:
    """Whether the plan's image is the user's own, not one of AWS's in the catalogue."""
    return api.is_own_image(plan, command_catalog().runtimes)


def _completing(names_in_runs: Callable[[Catalog, str], Iterable[str]]) -> Callable[..., list[str]]:
    """A shell completion with names of the catalogue; errors of the catalogue are not shown."""

    def complete(ctx: click.Context, _: click.Parameter, typed: str) -> list[str]:
        try:
            names = names_in_runs(api.load_catalog(catalog_of(ctx)), typed)
        except PeagleError:
            return []
        return list(dict.fromkeys(name for name in names if name.startswith(typed)))

    return complete


def _pairs(catalog: Catalog, typed: str) -> Iterable[str]:
    """Targets, after a ``+`` the drafters of that target, and plan files."""
    name, plus, _ = typed.partition("+")
    targets = {target.short_name: target for target in catalog.targets.values()}
    if plus and name in targets:
        return [f"{name}+{drafter.name}" for drafter in targets[name].drafters]
    return [*targets, *map(str, sorted(Path().glob("*.json")))]


complete_pair = _completing(_pairs)
complete_instance_type = _completing(
    lambda catalog, _: (i.type for i in catalog.instances.instances)
)
complete_gpu = _completing(lambda catalog, _: (i.gpu for i in catalog.instances.instances))
complete_version = _completing(lambda catalog, _: (r.vllm for r in catalog.runtimes.runtimes))
complete_region = _completing(lambda catalog, _: sorted(catalog.runtimes.accounts))


def settings_option(help: str, *also: str) -> Callable[..., Any]:
    """``--set NAME=VALUE``, with other spellings in ``also``: ``settings``, arguments of vLLM as
    text by name."""
    names = ("--set", *also, "settings")
    return _repeatable(names, "ARGUMENT[=VALUE]", help, lambda given: api.parse_settings(given))


def variables_option(help: str) -> Callable[..., Any]:
    """``--env NAME=VALUE``: ``environment``, by name."""
    names = ("--env", "environment")
    return _repeatable(names, "NAME=VALUE", help, lambda given: api.parse_variables(given))


def _repeatable(
    names: tuple[str, ...], metavar: str, help: str, parse: Callable[[tuple[str, ...]], Any]
) -> Callable[..., Any]:
    return click.option(
        *names,
        metavar=metavar,
        multiple=True,
        callback=lambda _, __, given: parse(given),
        help=f"{help} Repeatable.",
    )


def refuse_errors(findings: Sequence[Finding]) -> None:
    """Show the findings; raise Refused with the first error, which is not shown twice."""
    first = errors(findings)[:1]
    show_findings(finding for finding in findings if finding not in first)
    raise_first_error(findings)


def raise_first_error(findings: Sequence[Finding]) -> None:
    """Raise Refused with the first error among the findings, if there is one."""
    for finding in errors(findings)[:1]:
        raise refused(finding, where_text(finding.where))
