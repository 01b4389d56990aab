"""The options of the command line as keys of a project file, and their values from one.

A key is an option's longest flag without dashes, with ``_`` for ``-``; its value goes through the
option's own type and callback.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import click
from click.core import ParameterSource
from pydantic import Field

from peagle.cli.parameter_types import Decimal, Parsed, ParsedNumber
from peagle.errors import UserError
from peagle.project.choosing import ProjectValue
from peagle.project.reading import FileOptions, OptionKey, Project

ALL = "deploy"
"""The command that has every option of an endpoint."""

NOT_IN_FILE = frozenset(
    {"environment", "image_from", "json", "keep_failed", "no_wait", "project", "yes"}
)
"""Keys of options that are about one call, not about an endpoint."""

GATES: dict[str, tuple[str, ...]] = {
    "plan": ("plan",), "prove": ("prove",), "bench": ("bench", "run"),
}  # fmt: skip
"""The commands that stop a pipeline, and the words that call them."""

_NOT_IN_GATES = NOT_IN_FILE | {
    "acceptance", "endpoint", "lossless", "output", "profile", "region", "sandbox",
}  # fmt: skip

PRICE_GATE = "max_price_increase"
"""The option of ``peagle plan`` that is a gate; the others are those of an endpoint."""

_TEXT_OR_NUMBER = str | int | float | bool


def key_of(option: click.Option) -> str:
    """The key of an option."""
    return max(option.opts, key=len).removeprefix("--").replace("-", "_")


@lru_cache(maxsize=1)
def file_options(root: click.Group) -> FileOptions:
    """What a project file may contain, from the commands of ``root``."""
    keys = _keys(root, (ALL,), NOT_IN_FILE)
    gates = {name: _keys(root, words, _NOT_IN_GATES) for name, words in GATES.items()}
    gates["plan"] = tuple(one for one in gates["plan"] if one.name == PRICE_GATE)
    return FileOptions(keys, tuple(gates.items()))


def _keys(
    root: click.Group, words: tuple[str, ...], without: frozenset[str]
) -> tuple[OptionKey, ...]:
    options = [one for one in _command(root, words).params if isinstance(one, click.Option)]
    return tuple(
        OptionKey(key_of(one), str(one.name), _type_of(one), " ".join((one.help or "").split()))
        for one in sorted(options, key=key_of)
        if key_of(one) not in without
    )


def _command(root: click.Group, words: tuple[str, ...]) -> click.Command:
    command: click.Command | None = root
    for word in words:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), word)
    assert command is not None
    return command


def _type_of(option: click.Option) -> Any:
    """What the file may have as the value of an option."""
    if option.is_flag:
        return bool
    if option.multiple:
        return dict[str, _TEXT_OR_NUMBER | None] if _is_mapping(option) else tuple[str, ...]
    if "," in (option.metavar or ""):
        return int | str | tuple[int | str, ...]
    kind = option.type
    if isinstance(kind, Parsed | ParsedNumber):
        return int | str
    if isinstance(kind, Decimal):
        return float | str
    if isinstance(kind, click.Choice):
        return Literal[tuple(kind.choices)]
    if isinstance(kind, click.IntRange | click.FloatRange):
        lowest = {"gt" if kind.min_open else "ge": kind.min}
        limits = lowest | {"lt" if kind.max_open else "le": kind.max}
        known: Any = {one: at for one, at in limits.items() if at is not None}
        number = int if isinstance(kind, click.IntRange) else float
        return Annotated[number, Field(**known)]
    return float if kind is click.FLOAT else str


def _is_mapping(option: click.Option) -> bool:
    return "=" in (option.metavar or "")


def apply_values(
    ctx: click.Context,
    project: Project,
    keys: Iterable[OptionKey],
    values: Mapping[str, ProjectValue],
) -> None:
    """Give the command's options the values of the file, unless the user typed them; mappings are
    merged. They replace what environment variables say.

    ``values`` are the file's, ``keys`` those that the command takes. Raises ProjectFileError for a
    value that an option does not take.
    """
    given = {key.parameter: values[key.name] for key in keys if key.name in values}
    for option in ctx.command.params:
        if isinstance(option, click.Option) and option.name in given:
            _apply(ctx, project, option, given[option.name])


def check_gates(
    ctx: click.Context, project: Project, gates: Mapping[str, Mapping[str, ProjectValue]]
) -> None:
    """Raise ProjectFileError for a gate that its command does not take: a pipeline shall not find
    it after a deployment. Files are left out, since an earlier step may write them."""
    root = ctx.find_root().command
    assert isinstance(root, click.Group)
    for name, values in gates.items():
        for option in _command(root, GATES[name]).params:
            if isinstance(option, click.Option) and not isinstance(option.type, click.Path):
                given = values.get(key_of(option))
                if given is not None and given.value is not None:
                    _processed(ctx, project, option, given)


def _processed(
    ctx: click.Context, project: Project, option: click.Option, given: ProjectValue
) -> Any:
    try:
        return option.process_value(ctx, _as_typed(project, option, given))
    except click.BadParameter as error:
        raise project.error(given.location, error.message.rstrip(".")) from None
    except UserError as error:
        raise project.error(given.location, error.message, error.fix) from None


def _apply(ctx: click.Context, project: Project, option: click.Option, given: ProjectValue) -> None:
    name = str(option.name)
    is_typed = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    if is_typed and not _is_mapping(option):
        return
    value = _processed(ctx, project, option, given)
    if _is_mapping(option):
        own = ctx.params[name] or {}
        value = {**value, **own} if is_typed else {**own, **value}
    ctx.params[name] = value
    if not is_typed:
        ctx.set_parameter_source(name, ParameterSource.DEFAULT_MAP)


def _as_typed(project: Project, option: click.Option, given: ProjectValue) -> Any:
    """The value as click takes it from a command line. Numbers of a mapping are as the file spells
    them, so that ``0.90`` stays ``0.90``; paths are relative to the file."""
    value = given.value
    if isinstance(value, dict):
        text = {key: project.document.source(given.parts[key]) for key in value}
        return tuple(f"{key}={one}" for key, one in text.items())
    if isinstance(value, list):
        return tuple(value) if option.multiple else ",".join(map(str, value))
    if isinstance(value, str) and (isinstance(option.type, click.Path) or is_relative(value)):
        return in_folder(project, value)
    return str(value) if isinstance(value, int | float) and type(value) is not bool else value


def in_folder(project: Project, path: str) -> str:
    """A path of the file, relative to the working folder; with ``./`` in front, so that a folder is
    no name."""
    if Path(path).is_absolute():
        return path
    relative = os.path.relpath(project.folder / path)
    return relative if relative.startswith("..") else f"./{relative}"


def is_relative(text: str) -> bool:
    """Whether the text of a project file is a path from the file's folder."""
    return text.startswith(("./", "../"))
