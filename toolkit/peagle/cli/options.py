"""The types of options' values, options that several commands share, and refusal by a check."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from peagle.catalog import load_catalog
from peagle.catalog.schema import Catalog
from peagle.cli.view.console import print_findings, where_text
from peagle.errors import PeagleError, UserError, nearest
from peagle.findings import Finding, errors, refused
from peagle.planning import Options, Plan
from peagle.planning.overrides import parse_settings, parse_variables
from peagle.planning.runtime import DEFAULT_REGION, REGION_VARIABLES
from peagle.render.image import is_own_image
from peagle.speed.slo import parse_slo
from peagle.text import parse_batch, parse_duration, parse_requests, parse_tokens, sanitize

if TYPE_CHECKING:
    from peagle.speed.slo import Slo


T = TypeVar("T")

_MOST_LOADS = 32
"""A longer list of loads is a mistake, and would take long."""

_LARGEST_LOAD = 100_000


def duration(_: click.Context, option: click.Parameter, value: str | None) -> int | None:
    """A callback: the option's value as seconds. Raises BadParameter."""
    units = "hd" if option.name == "ttl" else "smh"
    try:
        return None if value is None else parse_duration(value, units)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def objective(_: click.Context, __: click.Parameter, value: str | None) -> Slo | None:
    """A callback: the value of ``--slo``. Raises UserError."""
    return None if value is None else parse_slo(value)


class Parsed(click.ParamType[T]):
    """The type of options whose value is what ``parse`` makes of the text; ``name`` is click's."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        """The value. Raises BadParameter where ``parse`` raises ValueError."""
        try:
            return self._parse(str(value))
        except ValueError as error:
            return self.fail(str(error), param, ctx)


class WholeNumber(click.IntRange):
    """A whole number from ``min`` to ``max``, if there is one, with an error that says so."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number. Raises BadParameter."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            is_open = self.max is None
            limits = f"of {self.min} or more" if is_open else f"from {self.min} to {self.max}"
            wrong = f"{sanitize(value, 40)!r} is not a whole number {limits}"
            return self.fail(wrong, param, ctx)


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{sanitize(text, 40)!r} is not a whole number of 1 or more") from None


K = Parsed("integer", _integer)
"""The type of ``--k`` of a plan, whose bounds planning checks."""


class OneOf(click.Choice[str]):
    """One of several words, with an error that suggests the nearest."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """The choices, and those close to the value."""
        hint = nearest(str(value), self.choices)
        message = f"{sanitize(value, 40)!r} is not one of {', '.join(self.choices)}"
        return f"{message}: {hint}" if hint else message


class ParsedNumber(click.IntRange):
    """A whole number from 1 on, as ``parse`` reads it."""

    def __init__(self, parse: Callable[[str], int]) -> None:
        super().__init__(min=1)
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number. Raises BadParameter, with an example of what is expected."""
        try:
            return value if type(value) is int else self._parse(str(value))
        except ValueError as error:
            return self.fail(str(error), param, ctx)


TOKENS = ParsedNumber(parse_tokens)
"""The type of options that are a number of tokens, such as ``8192`` or ``8k``."""

REQUESTS = ParsedNumber(parse_requests)
"""The type of options that are a number of requests, such as ``5000``."""


BATCH = ParsedNumber(parse_batch)
"""The type of options that are the number of requests of a batch, such as ``1m``."""


_THOUSANDS = re.compile(r"[1-9][0-9]{0,2}(?:[,_][0-9]{3})+(?:\.[0-9]+)?")


class Decimal(click.FloatRange):
    """A number within the bounds of click's FloatRange. ``allowed`` says in the error what is
    allowed, with an example; ``unit`` may stand before the number."""

    def __init__(self, allowed: str, unit: str = "", **bounds: Any) -> None:
        super().__init__(**bounds)
        self._allowed, self._unit = allowed, unit

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number. Raises BadParameter."""
        plain: Any = value.strip().removeprefix(self._unit) if isinstance(value, str) else value
        if isinstance(value, str) and _THOUSANDS.fullmatch(plain):
            plain = plain.replace(",", "").replace("_", "")
        try:
            number = float(super().convert(plain, param, ctx))
        except click.BadParameter:
            number = math.nan
        if math.isfinite(number):
            return number
        return self.fail(f"{sanitize(str(value), 40)!r} is not {self._allowed}", param, ctx)


SPEED = Decimal("a number of tokens per second above 0, such as 500", min=0, min_open=True)
"""The type of options that are a speed in output tokens per second."""

USD = Decimal("an amount in USD above 0, such as 200 or $1.50", "$", min=0, min_open=True)
"""The type of options that are a price in USD, such as ``15`` or ``$15``."""

REQUESTS_AT_A_TIME = Decimal("a number of requests above 0, such as 8", min=0, min_open=True)
"""The type of options that are a number of requests at a time, which may be broken."""


class _Loads(click.ParamType):  # type: ignore[type-arg]
    """Numbers of concurrent requests such as ``1,8,32``: ascending, each once."""

    name = "text"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """The numbers. Raises BadParameter."""
        if isinstance(value, tuple):
            return value
        words = [word.strip() for word in str(value).split(",")]
        if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
            return self.fail(
                f"{sanitize(value, 40)!r} is not a list of numbers such as 1,8,32", param, ctx
            )
        loads = sorted({int(word) for word in words})
        if not 1 <= loads[0] <= loads[-1] <= _LARGEST_LOAD:
            return self.fail(f"loads are from 1 to {_LARGEST_LOAD:,} requests", param, ctx)
        if len(loads) > _MOST_LOADS:
            return self.fail(f"{len(loads)} loads are more than {_MOST_LOADS}", param, ctx)
        return tuple(loads)


LOADS = _Loads()
"""The type of options that are a list of numbers of concurrent requests."""


class OutputPath(click.Path):
    """The type of options that name a ``what`` to write: a path with a name, in UTF-8. Output in
    another encoding would name a path that does not exist."""

    def __init__(self, what: str = "file", dir_okay: bool = True) -> None:
        super().__init__(dir_okay=dir_okay, path_type=Path)
        self._what = what

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path. Raises BadParameter."""
        text = os.fspath(value)
        if not text:
            return self.fail(f"an output {self._what} needs a name", param, ctx)
        if not _is_utf8(text):
            shown = text.encode("utf-8", "backslashreplace").decode()
            return self.fail(f"{shown} is not UTF-8", param, ctx)
        return super().convert(value, param, ctx)


def _is_utf8(text: str) -> bool:
    """Whether no byte of the command line had to be escaped in ``text``."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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
        ctx.meta[_CATALOG] = load_catalog(catalog_of(ctx))
    catalog: Catalog = ctx.meta[_CATALOG]
    return catalog


def set_command_catalog(ctx: click.Context, catalog: Catalog) -> None:
    """Give the running command this catalogue, such as one with the user's own target."""
    ctx.meta[_CATALOG] = catalog


def names_own_image(plan: Plan) -> bool:
    """Whether the plan's image is the user's own, not one of AWS's in the catalogue."""
    return is_own_image(plan, command_catalog().runtimes)


def _completing(names_in_runs: Callable[[Catalog, str], Iterable[str]]) -> Callable[..., list[str]]:
    """A shell completion with names of the catalogue; errors of the catalogue are not shown."""

    def complete(ctx: click.Context, _: click.Parameter, typed: str) -> list[str]:
        try:
            names = names_in_runs(load_catalog(catalog_of(ctx)), typed)
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
    return _repeatable(names, "ARGUMENT[=VALUE]", help, lambda texts: parse_settings(texts))


def variables_option(help: str) -> Callable[..., Any]:
    """``--env NAME=VALUE``: ``environment``, by name."""
    names = ("--env", "environment")
    return _repeatable(names, "NAME=VALUE", help, lambda texts: parse_variables(texts))


def _repeatable(
    names: tuple[str, ...], metavar: str, help: str, parse: Callable[[tuple[str, ...]], Any]
) -> Callable[..., Any]:
    return click.option(
        *names,
        metavar=metavar,
        multiple=True,
        callback=lambda _, __, texts: parse(texts),
        help=f"{help} Repeatable.",
    )


def refuse_errors(findings: Sequence[Finding]) -> None:
    """Show the findings; raise Refused with the first error, which is not shown twice."""
    first = errors(findings)[:1]
    print_findings((finding for finding in findings if finding not in first), err=True)
    raise_first_error(findings)


def raise_first_error(findings: Sequence[Finding]) -> None:
    """Raise Refused with the first error among the findings, if there is one."""
    for finding in errors(findings)[:1]:
        raise refused(finding, where_text(finding.where))
