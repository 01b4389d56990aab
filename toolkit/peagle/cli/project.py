"""``--environment`` and ``--project``: options from the project file ``peagle.yaml``."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import click

from peagle import api
from peagle.cli.context import PeagleCommand, is_plan_file, is_typed
from peagle.cli.options import PLAN_FIELDS, command_catalog
from peagle.cli.project_options import (
    apply_values,
    check_gates,
    file_options,
    in_folder,
    is_relative,
)
from peagle.errors import Fix, NotFound, PeagleError, UserError
from peagle.project.choosing import EndpointChoice
from peagle.project.reading import Project, ProjectFileError

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
    option = next(one for one in ctx.command.params if isinstance(one, _EnvironmentOption))
    argument = next(
        one for one in ctx.command.params
        if isinstance(one, click.Argument) and one.name in ("pair", "name")
    )  # fmt: skip
    environment, path = ctx.params.pop(_ENVIRONMENT), ctx.params.pop(_FILE)
    image_from = ctx.params.pop(_IMAGE_FROM, None)
    given = ctx.params[str(argument.name)]
    if environment is None and path is None:
        if given is not None or any(is_typed(ctx, name) for name in option.instead):
            return
        path = api.find_project(Path()) if option.implicit else None
        if path is None and option.instead:
            return  # the command has its own message
        if path is None:
            raise click.MissingParameter(ctx=ctx, param=argument)
    project = load_project(ctx, path)
    is_plan = is_plan_file(given or "")
    endpoint = _endpoint_of_plan(ctx, project, given, environment) if is_plan else given
    choice = api.choose_endpoint(project, endpoint, environment)
    ctx.meta[CHOICE] = choice
    apply_choice(ctx, choice, option.keys, is_plan, image_from)


def project_words(choice: EndpointChoice, path: Path | None = None) -> list[str]:
    """The endpoint in its environment, of its project file or another one at ``path``, as words of
    a command."""
    words = [choice.endpoint, "--project", str(path or choice.project.path)]
    return [*words, "--environment", choice.environment] if choice.environment else words


def load_project(ctx: click.Context, path: Path | None) -> Project:
    """The project file at ``path``, or the nearest. Raises ProjectFileError without one."""
    found = path or api.find_project(Path())
    if found is None:
        raise ProjectFileError(
            "there is no peagle.yaml in this folder or above",
            Fix("name it with --project, or write one", ("peagle", "ci", "init", "github")),
        )
    root = ctx.find_root().command
    assert isinstance(root, click.Group)
    return api.read_project(found, file_options(root))


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
        ctx.params["image"] = api.read_image_address(image_from)
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
        "pair": partial(api.find_pair, catalog),
        "instance_type": partial(api.find_instance, catalog.instances),
    }
    given = {"pair": choice.pair, "instance_type": choice.values.get("instance_type")}
    for key, find in checks.items():
        one = given[key]
        if one is None or (key == "pair" and api.is_own_target(catalog, str(one.value))):
            continue
        try:
            find(str(one.value))
        except NotFound as error:
            fix = error.remedy
            raise choice.project.error(one.location, error.message, fix) from None


def _endpoint_fix(ctx: click.Context) -> str:
    """How to name an endpoint of the project file; empty if the argument is none."""
    given = ctx.params.get("pair") or ctx.params.get("name")
    try:
        path = api.find_project(Path())
        project = load_project(ctx, path) if path else None
    except PeagleError:
        return ""
    if project is None or given not in api.endpoints_of(project):
        return ""
    names = api.environments_of(project)
    option = f"--environment {'|'.join(names)}" if names else f"--project {project.document.file}"
    return f"it is an endpoint in {project.document.file}: add {option}"


def _prefix(ctx: click.Context, choice: EndpointChoice) -> str:
    if "name_prefix" in ctx.params:
        return ctx.params["name_prefix"] or ""
    given = choice.values.get("name_prefix")
    return str(given.value) if given else os.environ.get(_PREFIX_VARIABLE, "")


def _endpoint_of_plan(
    ctx: click.Context, project: Project, file: str, environment: str | None
) -> str | None:
    """The endpoint whose deployment a plan file is about; ``None`` where the file has one only."""
    names = api.endpoints_of(project)
    if len(names) == 1:
        return None
    plan = api.read_plan(Path(file))
    having = [one for one in names if environment in (None, *api.environments_of(project, one))]
    for name in having or names:
        choice = api.choose_endpoint(project, name, environment)
        if choice.deployment_name(_prefix(ctx, choice)) == plan.name:
            return name
    raise ProjectFileError(
        f"{file} is the plan of {plan.name}, which no endpoint of {project.document.file} is",
        f"endpoints: {', '.join(names)}",
    )


def _complete_environment(ctx: click.Context, _: click.Parameter, typed: str) -> list[str]:
    """The environments of the project file; none if it cannot be read."""
    try:
        names = api.environments_of(load_project(ctx, ctx.params.get(_FILE)))
    except PeagleError:
        return []
    return [name for name in names if name.startswith(typed)]
