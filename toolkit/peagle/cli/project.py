"""``--environment`` and ``--project``: options from the project file ``peagle.yaml``.

A key is an option's longest flag without dashes, with ``_`` for ``-``; its value goes through the
option's own type and callback.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import click
from click.core import ParameterSource

from peagle.account import leads_to_sandbox
from peagle.cli import view
from peagle.cli.context import PeagleCommand, is_plan_file, is_typed, range_text, root_group
from peagle.cli.options import PLAN_FIELDS, Parsed, option
from peagle.deploy.records import deployment_names
from peagle.errors import Fix, UserError
from peagle.options import ONLY_DEPLOY
from peagle.project import (
    EndpointChoice,
    FileOptions,
    OptionKey,
    Project,
    ProjectFileError,
    ProjectValue,
    choose_endpoint,
    find_project,
    read_project,
)
from peagle.store import SANDBOX

CHOICE = "peagle.endpoint-choice"
"""Key in click's ``Context.meta`` of the EndpointChoice that the command is about, if any."""

ACCOUNT = ("profile", "region", "sandbox")
"""Keys that say where a deployment is."""

_ALL = ("deploy",)
"""The command that has every option of an endpoint."""

_GATES = {"plan": ("plan",), "prove": ("prove",), "bench": ("bench", "run")}
"""The commands that stop a pipeline, and the words that call them."""

_OF_ONE_CALL = {
    ONLY_DEPLOY, "environment", "image_from", "json", "keep_failed", "no_wait", "project", "yes",
}  # fmt: skip
_NOT_GATES = _OF_ONE_CALL | {
    "acceptance", "endpoint", "lossless", "output", "profile", "region", "sandbox",
}  # fmt: skip
_EITHER = {"profile": "sandbox", "sandbox": "profile"}
"""Parameters that exclude each other: the one that is typed replaces the file's other one."""


def _options(root: click.Group, words: tuple[str, ...]) -> dict[str, click.Option]:
    command: click.Command | None = root
    for word in words:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), word)
    assert command is not None
    options = [option for option in command.params if isinstance(option, click.Option)]
    return {
        max(option.opts, key=len).removeprefix("--").replace("-", "_"): option for option in options
    }


@lru_cache(maxsize=1)
def file_options(root: click.Group) -> FileOptions:
    """What a project file may contain, from the commands of ``root``."""

    def keys(words: tuple[str, ...], without: Collection[str]) -> tuple[OptionKey, ...]:
        return tuple(
            OptionKey(key, str(option.name), _choose_type(option), option.help or "")
            for key, option in sorted(_options(root, words).items())
            if key not in without and (words != ("plan",) or key == "max_price_increase")
        )

    gates = ((name, keys(words, _NOT_GATES)) for name, words in _GATES.items())
    return FileOptions(keys(_ALL, _OF_ONE_CALL), tuple(gates))


def _is_mapping(option: click.Option) -> bool:
    return "=" in (option.metavar or "")


def _choose_type(option: click.Option) -> Any:
    """What the file may have as the value of an option; the option itself checks the rest."""
    kind = option.type
    if option.is_flag:
        return bool
    if option.multiple:
        return (
            dict[str, str | int | float | bool | None] if _is_mapping(option) else tuple[str, ...]
        )
    if "," in (option.metavar or ""):
        return int | str | tuple[int | str, ...]
    if isinstance(kind, click.Choice):
        return Literal[tuple(kind.choices)]
    if isinstance(kind, Parsed) and kind.name != "text":
        return int | str
    if isinstance(kind, click.FloatRange):
        return float | str
    return int if isinstance(kind, click.types.IntParamType) else str


def _convert(
    ctx: click.Context, project: Project, option: click.Option, setting: ProjectValue
) -> Any:
    """The value that the option makes of that in the file: numbers of a mapping as the file spells
    them (``0.90``), paths relative to it. Raises ProjectFileError."""
    value = setting.value
    if isinstance(value, dict):
        value = tuple(f"{key}={project.document.texts[setting.parts[key]]}" for key in value)
    elif isinstance(value, list):
        value = tuple(value) if option.multiple else ",".join(map(str, value))
    elif isinstance(value, str):
        value = _in_folder(project, value, isinstance(option.type, click.Path))
    elif type(value) is not bool:
        value = str(value)
    try:
        return option.process_value(ctx, value)
    except click.BadParameter as error:
        message = range_text(error) or error.message.rstrip(".")
        raise project.error(setting.location, message) from None
    except UserError as error:
        raise project.error(setting.location, error.message, error.fix) from None


def _in_folder(project: Project, text: str, always: bool = False) -> str:
    """A path of the file, relative to the working folder, with ``./`` in front, so that a folder is
    no name; unless it is ``always`` one, other text stays."""
    if Path(text).is_absolute() or not (always or text.startswith(("./", "../"))):
        return text
    relative = os.path.relpath(project.path.parent / text)
    return relative if relative.startswith("..") else f"./{relative}"


class ProjectCommand(PeagleCommand):
    """A command whose argument and options may come from a project file: of the file's keys it
    takes ``keys`` (``None``: all). Without an argument the only endpoint is meant, if ``implicit``,
    unless there is a parameter of ``instead``."""

    def __init__(
        self,
        *names: Any,
        keys: Collection[str] | None = None,
        instead: Collection[str] = (),
        implicit: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__(*names, **settings)
        self.keys, self.instead, self.implicit = keys, instead, implicit
        arguments = (part for part in self.params if part.name in ("pair", "name"))
        self.argument = next(part for part in arguments if isinstance(part, click.Argument))
        at = self.params.index(self.argument) + 1
        self.params[at:at] = [
            option("-e --environment project_environment NAME", "Environment in the project file, "
                   "such as staging. The argument is then the name of an endpoint there, if it has "
                   "several."),
            option("--project project_file FILE", "Project file.  [default: peagle.yaml in this "
                   "folder or above]", "file"),
        ]  # fmt: skip

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, then give the options that were not typed the values of the file."""
        rest = super().parse_args(ctx, args)
        if not ctx.resilient_parsing:
            _take_from_project(ctx, self)
        return rest


def complete_name(ctx: click.Context, _: click.Parameter, typed: str) -> list[str]:
    """Names of deployments that begin as typed."""
    sandbox = ctx.params.get("sandbox") or leads_to_sandbox(os.environ)
    names = deployment_names(SANDBOX if sandbox else None)
    return [name for name in names if name.startswith(typed)]


def _take_from_project(ctx: click.Context, command: ProjectCommand) -> None:
    environment = ctx.params.pop("project_environment")
    path = ctx.params.pop("project_file")
    image_from = ctx.params.pop("image_from", None)
    typed = ctx.params[str(command.argument.name)]
    is_plan = is_plan_file(typed or "")
    if environment is None and path is None:
        nearest = find_project(Path())
        if typed is not None or any(is_typed(ctx, name) for name in command.instead):
            # The user may think that the network and the key in it apply.
            if nearest and ctx.command.name in ("deploy", "plan") and not is_plan:
                file = f"{nearest.name} is not used"
                view.print_status(f"{file}: name one of its endpoints, with -e or --project")
            return
        path = nearest if command.implicit else None
        if path is None and command.instead:
            return  # the command has its own message
        if path is None:
            raise click.MissingParameter(ctx=ctx, param=command.argument)
    project = load_project(ctx, path)
    choice = choose_endpoint(project, None if is_plan else typed, environment)
    ctx.meta[CHOICE] = choice
    _apply_choice(ctx, choice, command.keys, is_plan)
    if is_plan:
        return
    name = choice.deployment_name(_prefix(ctx, choice))
    if "pair" not in ctx.params:
        ctx.params["name"] = name
        return
    if choice.builds_image and ctx.params.get("image") is None and image_from:
        from peagle.render.image import read_image_address

        ctx.params["image"] = read_image_address(image_from)
    ctx.params["pair"] = _in_folder(project, choice.pair)
    if "name" in ctx.params and ctx.params["name"] is None:
        ctx.params["name"] = name


def _apply_choice(
    ctx: click.Context, choice: EndpointChoice, keys: Collection[str] | None, is_plan: bool
) -> None:
    """Give the options that the user did not type the values of the file; mappings are merged. A
    plan file has decided everything but the account's options.

    Raises ProjectFileError.
    """
    project, command = choice.project, "bench" if ctx.command.name == "run" else ctx.command.name
    settings = {
        key.parameter: choice.values[key.name]
        for key in project.options.keys
        if key.name in choice.values
        and (keys is None or key.name in keys)
        and key.name != "name"  # that of the deployment depends on the environment
        and not (is_plan and key.parameter in PLAN_FIELDS)
        and not is_typed(ctx, _EITHER.get(key.parameter, ""))
    }
    for name, keys_of_gate in project.options.gates:
        if name == command:
            gates = choice.gates[name]
            settings |= {
                key.parameter: gates[key.name] for key in keys_of_gate if key.name in gates
            }
    for parameter in ctx.command.params:
        name, typed = str(parameter.name), is_typed(ctx, str(parameter.name))
        if not isinstance(parameter, click.Option) or name not in settings:
            continue
        if typed and not _is_mapping(parameter):
            continue
        value = _convert(ctx, project, parameter, settings[name])
        if _is_mapping(parameter):
            mapping = ctx.params[name] or {}
            value = {**value, **mapping} if typed else {**mapping, **value}
        ctx.params[name] = value
        if not typed:
            ctx.set_parameter_source(name, ParameterSource.DEFAULT_MAP)


def load_project(ctx: click.Context, path: Path | None) -> Project:
    """The project file at ``path``, or the nearest. Raises ProjectFileError without one."""
    file = path or find_project(Path())
    if file is None:
        fix = Fix("name it with --project, or write one", ("peagle", "ci", "init", "github"))
        raise ProjectFileError("there is no peagle.yaml in this folder or above", fix)
    return read_project(file, file_options(root_group(ctx)))


def require_built_image(ctx: click.Context) -> None:
    """Raise UserError for an endpoint with build_image whose image is not named."""
    choice: EndpointChoice | None = ctx.meta.get(CHOICE)
    if choice and choice.builds_image and ctx.params.get("image") is None:
        message = f"{choice.endpoint} has build_image, but no image is given"
        fix = "add --image-from FILE, from `image build --address-file FILE`, or --image"
        raise UserError(message, fix, code="image-not-given")


def _prefix(ctx: click.Context, choice: EndpointChoice) -> str:
    if "name_prefix" in ctx.params:
        return ctx.params["name_prefix"] or ""
    prefix = choice.values.get("name_prefix")
    return str(prefix.value) if prefix else os.environ.get("PEAGLE_NAME_PREFIX", "")
