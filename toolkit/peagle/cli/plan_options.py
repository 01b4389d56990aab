"""The planning options of commands, made from the fields of ``Options``."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, get_args

import click

from peagle.cli.context import KeyOfFile
from peagle.cli.options import (
    BATCH,
    PLAN_FIELDS,
    REQUESTS,
    REQUESTS_AT_A_TIME,
    SPEED,
    TOKENS,
    USD,
    K,
    OneOf,
    Parsed,
    WholeNumber,
    complete_instance_type,
    complete_pair,
    complete_region,
    complete_version,
    duration,
    objective,
)
from peagle.cli.planned import planned
from peagle.cli.project import image_from_option, project_options
from peagle.options import (
    AUTO,
    GROUPS,
    LONGEST_CAPTURE_DAYS,
    ONLY_DEPLOY,
    Flag,
    Kind,
    Options,
    option_name,
    read_flags,
)
from peagle.planning.company import parse_tags
from peagle.planning.overrides import parse_settings, parse_variables
from peagle.text import sanitize


def parse_copies(text: str) -> int | str:
    """A number of engines, or ``auto``. Raises ValueError."""
    if text == AUTO:
        return AUTO
    if text.isascii() and text.isdecimal() and len(text) < 4 and int(text) > 0:
        return int(text)
    raise ValueError(f"{sanitize(text, 40)!r} is neither auto nor a number of engines")


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


_KINDS: dict[Kind, dict[str, Any]] = {
    "text": {},
    "switch": {"is_flag": True},
    "count": {"type": WholeNumber(1)},
    "number": {"type": WholeNumber(0), "metavar": "N"},
    "k": {"type": K},
    "copies": {"type": Parsed("copies", parse_copies), "metavar": "N|auto"},
    "tokens": {"type": TOKENS, "metavar": "TOKENS"},
    "requests": {"type": REQUESTS, "metavar": "REQUESTS"},
    "batch": {"type": BATCH, "metavar": "N"},
    "percent": {"type": WholeNumber(1, 100), "metavar": "PERCENT"},
    "days": {"type": WholeNumber(0, LONGEST_CAPTURE_DAYS), "metavar": "DAYS"},
    "usd": {"type": USD, "metavar": "USD"},
    "speed": {"type": SPEED, "metavar": "N"},
    "load": {"type": REQUESTS_AT_A_TIME, "metavar": "REQUESTS"},
    "duration": {"callback": duration, "metavar": "DURATION"},
    "hours": {"callback": duration, "metavar": "DURATION"},
    "slo": {"callback": objective, "metavar": "TIMES"},
    "ids": {"type": _Ids(), "metavar": "ID,..."},
    "texts": {"multiple": True, "metavar": "SHA256"},
    "settings": {
        "multiple": True,
        "callback": lambda _, __, words: parse_settings(words),
        "metavar": "ARGUMENT[=VALUE]",
    },
    "variables": {
        "multiple": True,
        "callback": lambda _, __, words: parse_variables(words),
        "metavar": "NAME=VALUE",
    },
    "tags": {
        "multiple": True,
        "type": _Tag(),
        "callback": lambda _, __, words: parse_tags(words),
        "metavar": "KEY=VALUE",
    },
}
"""Kind of value -> its settings of click."""

_COMPLETIONS = {
    "instance_type": complete_instance_type,
    "vllm": complete_version,
    "region": complete_region,
}


class PlanOption(click.Option):
    """An option with a heading in ``--help``."""

    group = ""


def make_option(field: str, flag: Flag, tag_flag: str = "--tag") -> click.Option:
    """The option of that field of Options."""
    settings = dict(_KINDS.get(flag.kind, {}))
    if flag.kind == "choice":
        settings["type"] = OneOf(_read_choices(Options.model_fields[field].annotation))
    if flag.metavar:
        settings["metavar"] = flag.metavar
    name = tag_flag if field == "tags" else option_name(field, flag)
    parameter = "no_speculation" if field == "speculation" else field
    repeatable = " Repeatable." if flag.kind in ("settings", "variables") else ""
    option = (KeyOfFile if flag.in_file else PlanOption)(
        [name, parameter],
        help=flag.help + repeatable,
        envvar=flag.variables,
        hidden=flag.in_file,
        shell_complete=_COMPLETIONS.get(field),
        **settings,
    )
    if isinstance(option, PlanOption):
        option.group = flag.group
    return option


def _read_choices(annotation: Any) -> tuple[str, ...]:
    """The words of ``Literal[...]`` or ``Literal[...] | None``."""
    inner = [word for argument in get_args(annotation) for word in get_args(argument)]
    return tuple(inner or get_args(annotation))


def _make_options(command: str, tag_flag: str | None) -> list[click.Option]:
    """All planning options of ``command``; without ``tag_flag``, not those of a company."""
    flags = [
        (field, flag)
        for field, flag in read_flags()
        if (tag_flag or flag.group != "Company") and (field != ONLY_DEPLOY or command == "deploy")
    ]
    flags.sort(key=lambda item: GROUPS.index(item[1].group))
    verdict = PlanOption(
        ["--verdict"],
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Take drafter and K from this file of `peagle verdict`.",
    )
    verdict.group = "Speculation"
    return [*(make_option(field, flag, tag_flag or "--tag") for field, flag in flags), verdict]


def _add(command: Callable[..., Any], options: list[click.Option]) -> None:
    vars(command).setdefault("__click_params__", []).extend(reversed(options))


def plan_options(command: Callable[..., Any], tag_flag: str | None = "--tag") -> Callable[..., Any]:
    """Add the argument PAIR|PLAN and all planning options to a ``ProjectCommand``, which receives
    ``plan``. ``tag_flag`` is the option that adds tags; ``None`` leaves out what a company
    prescribes."""

    @click.pass_context
    @wraps(command)
    def with_plan(ctx: click.Context, /, pair: str, **parameters: Any) -> Any:
        chosen = {name: parameters.pop(name) for name in PLAN_FIELDS & parameters.keys()}
        return ctx.invoke(command, plan=planned(ctx, pair, chosen), **parameters)

    _add(with_plan, _make_options(command.__name__, tag_flag))
    argument = click.argument(
        "pair", metavar="PAIR|PLAN", required=False, shell_complete=complete_pair
    )
    return argument(project_options()(image_from_option(with_plan)))


def planning_options(without: Collection[str]) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: add the planning options to a command, except for parameters ``without``.

    The command calls ``resolve_plan`` itself, with ``planning_choices``.
    """

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        options = _make_options(command.__name__, "--tag")
        _add(command, [option for option in options if option.name not in without])
        return command

    return add


def planning_choices(parameters: dict[str, Any], without: Collection[str]) -> dict[str, Any]:
    """The planning options among the parameters of a command, except for those ``without``."""
    fields = PLAN_FIELDS - {"pair", *without}
    return {name: value for name, value in parameters.items() if name in fields}


def field_options(*fields: str) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: add the options of these fields, also of keys of the file, to a command without
    a project file."""
    flags = {name: replace(flag, in_file=False, group="Options") for name, flag in read_flags()}

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        _add(command, [make_option(field, flags[field]) for field in fields])
        return command

    return add
