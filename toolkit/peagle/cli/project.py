"""``--environment`` and ``--project``: options from the project file ``peagle.yaml``.

A key is an option's longest flag without dashes, with ``_`` for ``-``; its value goes through the
option's own type and callback.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal

import click
from click.core import ParameterSource
from pydantic import Field

from peagle.catalog import find_instance, find_pair
from peagle.cli.context import PeagleCommand, is_plan_file, is_typed
from peagle.cli.options import PLAN_FIELDS, Decimal, Parsed, ParsedNumber, command_catalog
from peagle.cli.view.console import print_status
from peagle.errors import Fix, NotFound, PeagleError, UserError
from peagle.options import ONLY_DEPLOY
from peagle.project.choosing import (
    EndpointChoice,
    ProjectValue,
    choose_endpoint,
    endpoints_of,
    environments_of,
)
from peagle.project.reading import (
    FileOptions,
    OptionKey,
    Project,
    ProjectFileError,
    find_project,
    read_project,
)
from peagle.render import read_plan
from peagle.render.image import read_image_address
from peagle.weights.own_target import is_own_target

ALL = "deploy"
"""The command that has every option of an endpoint."""

NOT_IN_FILE = frozenset(
    {
        ONLY_DEPLOY,
        "environment",
        "image_from",
        "json",
        "keep_failed",
        "no_wait",
        "project",
        "yes",
    }
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
    gates["plan"] = tuple(key for key in gates["plan"] if key.name == PRICE_GATE)
    return FileOptions(keys, tuple(gates.items()))


def _keys(
    root: click.Group, words: tuple[str, ...], without: frozenset[str]
) -> tuple[OptionKey, ...]:
    options = [
        option for option in _command(root, words).params if isinstance(option, click.Option)
    ]
    return tuple(
        OptionKey(
            key_of(option),
            str(option.name),
            _type_of(option),
            " ".join((option.help or "").split()),
        )
        for option in sorted(options, key=key_of)
        if key_of(option) not in without
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
        bounds: Any = {limit: at for limit, at in limits.items() if at is not None}
        number = int if isinstance(kind, click.IntRange) else float
        return Annotated[number, Field(**bounds)]
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
    chosen = {key.parameter: values[key.name] for key in keys if key.name in values}
    for option in ctx.command.params:
        if isinstance(option, click.Option) and option.name in chosen:
            _apply(ctx, project, option, chosen[option.name])


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
                setting = values.get(key_of(option))
                if setting is not None and setting.value is not None:
                    _process(ctx, project, option, setting)


def _process(
    ctx: click.Context, project: Project, option: click.Option, setting: ProjectValue
) -> Any:
    try:
        return option.process_value(ctx, _as_typed(project, option, setting))
    except click.BadParameter as error:
        raise project.error(setting.location, error.message.rstrip(".")) from None
    except UserError as error:
        raise project.error(setting.location, error.message, error.fix) from None


def _apply(
    ctx: click.Context, project: Project, option: click.Option, setting: ProjectValue
) -> None:
    name = str(option.name)
    is_typed = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    if is_typed and not _is_mapping(option):
        return
    value = _process(ctx, project, option, setting)
    if _is_mapping(option):
        mapping = ctx.params[name] or {}
        value = {**value, **mapping} if is_typed else {**mapping, **value}
    ctx.params[name] = value
    if not is_typed:
        ctx.set_parameter_source(name, ParameterSource.DEFAULT_MAP)


def _as_typed(project: Project, option: click.Option, setting: ProjectValue) -> Any:
    """The value as click takes it from a command line. Numbers of a mapping are as the file spells
    them, so that ``0.90`` stays ``0.90``; paths are relative to the file."""
    value = setting.value
    if isinstance(value, dict):
        text = {key: project.document.source(setting.parts[key]) for key in value}
        return tuple(f"{key}={part}" for key, part in text.items())
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


ACCOUNT = ("profile", "region", "sandbox")
"""Keys that say where a deployment is."""

_PREFIX_VARIABLE = "PEAGLE_NAME_PREFIX"
_EITHER = {"profile": "sandbox", "sandbox": "profile"}
"""Parameters that exclude each other: the one that is typed replaces the file's other one."""

_ENVIRONMENT, _FILE, _IMAGE_FROM = "project_environment", "project_file", "image_from"


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class _EnvironmentOption(click.Option):
    """``--environment``. ``keys`` are those of the file that the command takes (``None``: all).

    Without the option, a missing argument means the only endpoint of the file, if ``implicit``;
    ``instead`` are parameters with which the command needs no argument.
    """

    def __init__(
        self,
        *flags: Any,
        keys: Collection[str] | None,
        instead: Collection[str],
        implicit: bool,
        **settings: Any,
    ) -> None:
        super().__init__(*flags, **settings)
        self.keys, self.instead, self.implicit = keys, instead, implicit


class ProjectCommand(PeagleCommand):
    """A command whose argument and options may come from a project file."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, then give the options that were not typed the values of the file."""
        rest = super().parse_args(ctx, args)
        if not ctx.resilient_parsing:
            _take_from_project(ctx)
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. A name that is unknown may be that of an endpoint in the file."""
        try:
            return super().invoke(ctx)
        except NotFound as error:
            if CHOICE not in ctx.meta and (fix := _endpoint_fix(ctx)):
                raise NotFound(error.message, fix, error.code) from None
            raise


def project_options(
    keys: Collection[str] | None = None, instead: Collection[str] = (), implicit: bool = True
) -> Decorator:
    """Add ``--environment`` and ``--project`` to a ``ProjectCommand``; the parameters are those of
    ``_EnvironmentOption``."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        environment = click.option(
            "-e",
            "--environment",
            _ENVIRONMENT,
            cls=_EnvironmentOption,
            keys=keys,
            instead=instead,
            implicit=implicit,
            metavar="NAME",
            help="Environment in the project file, such as staging. The argument is then the name "
            "of an endpoint there, if it has several.",
            shell_complete=_complete_environment,
        )
        file = click.option(
            "--project",
            _FILE,
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Project file.  [default: peagle.yaml in this folder or above]",
        )
        return environment(file(command))

    return add


def endpoint_argument(
    complete: Callable[..., Any],
    metavar: str | None = None,
    instead: Collection[str] = (),
    implicit: bool = True,
    keys: Collection[str] = ACCOUNT,
) -> Decorator:
    """Add the argument NAME of a deployment, ``--environment`` and ``--project`` to a
    ``ProjectCommand``, which receives ``name``; ``None`` only with a parameter of ``instead``.
    ``keys`` are those of the project file that the command takes."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        shown = metavar or ("[NAME]" if instead else "NAME")
        argument = click.argument("name", metavar=shown, required=False, shell_complete=complete)
        return argument(project_options(keys, instead, implicit)(command))

    return add


CHOICE = "peagle.endpoint-choice"
"""Key in click's ``Context.meta`` of the EndpointChoice that the command is about; absent if it is
about none."""


def _take_from_project(ctx: click.Context) -> None:
    option = next(
        parameter for parameter in ctx.command.params if isinstance(parameter, _EnvironmentOption)
    )
    argument = next(
        parameter for parameter in ctx.command.params
        if isinstance(parameter, click.Argument) and parameter.name in ("pair", "name")
    )  # fmt: skip
    environment, path = ctx.params.pop(_ENVIRONMENT), ctx.params.pop(_FILE)
    image_from = ctx.params.pop(_IMAGE_FROM, None)
    typed = ctx.params[str(argument.name)]
    if environment is None and path is None:
        if typed is not None or any(is_typed(ctx, name) for name in option.instead):
            if ctx.command.name in (ALL, "plan") and not is_plan_file(typed or ""):
                _say_unused()
            return
        path = find_project(Path()) if option.implicit else None
        if path is None and option.instead:
            return  # the command has its own message
        if path is None:
            raise click.MissingParameter(ctx=ctx, param=argument)
    project = load_project(ctx, path)
    is_plan = is_plan_file(typed or "")
    endpoint = _endpoint_of_plan(ctx, project, typed, environment) if is_plan else typed
    choice = choose_endpoint(project, endpoint, environment)
    ctx.meta[CHOICE] = choice
    apply_choice(ctx, choice, option.keys, is_plan, image_from)


def _say_unused() -> None:
    """A company's network and key may be in the file, and the user may think that they apply."""
    if path := find_project(Path()):
        print_status(f"{path.name} is not used: name one of its endpoints, with -e or --project")


def project_words(choice: EndpointChoice, path: Path | None = None) -> list[str]:
    """The endpoint in its environment, of its project file or another one at ``path``, as words of
    a command."""
    words = [choice.endpoint, "--project", str(path or choice.project.path)]
    return [*words, "--environment", choice.environment] if choice.environment else words


def load_project(ctx: click.Context, path: Path | None) -> Project:
    """The project file at ``path``, or the nearest. Raises ProjectFileError without one."""
    file = path or find_project(Path())
    if file is None:
        raise ProjectFileError(
            "there is no peagle.yaml in this folder or above",
            Fix("name it with --project, or write one", ("peagle", "ci", "init", "github")),
        )
    root = ctx.find_root().command
    assert isinstance(root, click.Group)
    return read_project(file, file_options(root))


def apply_choice(
    ctx: click.Context,
    choice: EndpointChoice,
    keys: Collection[str] | None,
    is_plan: bool,
    image_from: Path | None = None,
) -> None:
    """Give the command's argument and options the values of the file. A plan file has decided
    everything but the account's options."""
    project = choice.project
    taken = [
        key for key in project.options.keys
        if (keys is None or key.name in keys)
        and key.name != "name"  # that of the deployment depends on the environment
        and not (is_plan and key.parameter in PLAN_FIELDS)
        and not is_typed(ctx, _EITHER.get(key.parameter, ""))
    ]  # fmt: skip
    check_gates(ctx, project, choice.gates)
    apply_values(ctx, project, taken, choice.values)
    command = "bench" if ctx.command.name == "run" else ctx.command.name
    for name, gates in project.options.gates:
        if name == command:
            apply_values(ctx, project, gates, choice.gates[name])
    if is_plan:
        return
    _check_names(ctx, choice)
    name = choice.deployment_name(_prefix(ctx, choice))
    if "pair" not in ctx.params:
        ctx.params["name"] = name
        return
    if choice.builds_image and ctx.params.get("image") is None and image_from:
        ctx.params["image"] = read_image_address(image_from)
    pair = str(choice.pair.value)
    ctx.params["pair"] = in_folder(project, pair) if is_relative(pair) else pair
    if "name" in ctx.params and ctx.params["name"] is None:
        ctx.params["name"] = name


def image_from_option(command: Callable[..., Any]) -> Any:
    """Add ``--image-from`` to a ``ProjectCommand`` with ``--image``."""
    return click.option(
        "--image-from",
        _IMAGE_FROM,
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="The image of an endpoint with build_image in the project file: its address, from "
        "`peagle image build --address-file`. Without build_image the file is not read.",
    )(command)


def require_built_image(ctx: click.Context) -> None:
    """Raise UserError for an endpoint with build_image whose image is not named."""
    choice: EndpointChoice | None = ctx.meta.get(CHOICE)
    if choice and choice.builds_image and ctx.params.get("image") is None:
        raise UserError(
            f"{choice.endpoint} has build_image, but no image is given",
            "add --image-from FILE, from `image build --address-file FILE`, or --image",
            code="image-not-given",
        )


def _check_names(ctx: click.Context, choice: EndpointChoice) -> None:
    """Raise ProjectFileError for a pair or an instance type that the catalogue does not have."""
    if "pair" not in ctx.params:
        return
    catalog = command_catalog(ctx)
    checks: dict[str, Callable[[str], object]] = {
        "pair": partial(find_pair, catalog),
        "instance_type": partial(find_instance, catalog.instances),
    }
    names = {"pair": choice.pair, "instance_type": choice.values.get("instance_type")}
    for key, find in checks.items():
        name = names[key]
        if name is None or (key == "pair" and is_own_target(catalog, str(name.value))):
            continue
        try:
            find(str(name.value))
        except NotFound as error:
            fix = error.remedy
            raise choice.project.error(name.location, error.message, fix) from None


def _endpoint_fix(ctx: click.Context) -> str:
    """How to name an endpoint of the project file; empty if the argument is none."""
    name = ctx.params.get("pair") or ctx.params.get("name")
    try:
        path = find_project(Path())
        project = load_project(ctx, path) if path else None
    except PeagleError:
        return ""
    if project is None or name not in endpoints_of(project):
        return ""
    names = environments_of(project)
    option = f"--environment {'|'.join(names)}" if names else f"--project {project.document.file}"
    return f"it is an endpoint in {project.document.file}: add {option}"


def _prefix(ctx: click.Context, choice: EndpointChoice) -> str:
    if "name_prefix" in ctx.params:
        return ctx.params["name_prefix"] or ""
    prefix = choice.values.get("name_prefix")
    return str(prefix.value) if prefix else os.environ.get(_PREFIX_VARIABLE, "")


def _endpoint_of_plan(
    ctx: click.Context, project: Project, file: str, environment: str | None
) -> str | None:
    """The endpoint whose deployment a plan file is about; ``None`` where the file has one only."""
    names = endpoints_of(project)
    if len(names) == 1:
        return None
    plan = read_plan(Path(file))
    candidates = [name for name in names if environment in (None, *environments_of(project, name))]
    for name in candidates or names:
        choice = choose_endpoint(project, name, environment)
        if choice.deployment_name(_prefix(ctx, choice)) == plan.name:
            return name
    raise ProjectFileError(
        f"{file} is the plan of {plan.name}, which no endpoint of {project.document.file} is",
        f"endpoints: {', '.join(names)}",
    )


def _complete_environment(ctx: click.Context, _: click.Parameter, typed: str) -> list[str]:
    """The environments of the project file; none if it cannot be read."""
    try:
        names = environments_of(load_project(ctx, ctx.params.get(_FILE)))
    except PeagleError:
        return []
    return [name for name in names if name.startswith(typed)]
