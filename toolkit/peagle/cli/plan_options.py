"""The planning options of commands, made from the fields of ``Options``; and how PAIR|PLAN with
them becomes a Plan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
from click.core import ParameterSource

from peagle.catalog.tables import HERE
from peagle.checkpoints.models import Checkpoint
from peagle.cli import view
from peagle.cli.context import is_plan_file, root_group, typed_flag
from peagle.cli.options import (
    CATALOG,
    FILE,
    KINDS,
    PLAN_FIELDS,
    Option,
    add_options,
    command_catalog,
    complete_pair,
    is_here,
    option,
)
from peagle.cli.project import CHOICE
from peagle.errors import OptionsConflict
from peagle.options import (
    GROUPS,
    ONLY_DEPLOY,
    EngineOptions,
    Flag,
    Options,
    ValueKind,
    option_names,
    read_flags,
)
from peagle.planning import Plan
from peagle.planning.overrides import parse_pairs, parse_settings, parse_speculative
from peagle.planning.runtime import DEFAULT_REGION
from peagle.render import read_plan
from peagle.weights import own_target
from peagle.weights.layout import AwsOf, checkpoint_at
from peagle_serve.contract import is_s3_uri

if TYPE_CHECKING:
    from peagle.session import Session


_CALLBACKS: dict[ValueKind, Callable[..., Any]] = {
    "settings": lambda _, __, words: parse_settings(words),
    "variables": lambda _, __, words: parse_pairs(words, "--env", "invalid-variable"),
    "tags": lambda _, __, words: parse_pairs(words, "--tag", "invalid-tag"),
    "speculative": lambda _, __, words: parse_speculative(words),
}


def make_option(
    field: str, flag: Flag, tag_flag: str = "--tag", of: type[Options] = Options
) -> Option:
    """The option of that field."""
    kind, metavar = KINDS[flag.kind]
    if flag.kind == "choice":  # Literal[...] or Literal[...] | None
        words = get_args(of.model_fields[field].annotation)
        kind = click.Choice(get_args(words[0]) or words)
    repeatable = " Repeatable." if flag.kind in ("settings", "variables", "speculative") else ""
    made = Option(
        [
            *([tag_flag] if field == "tags" else option_names(field, flag)),
            "no_speculation" if field == "speculation" else field,
        ],
        type=kind,
        metavar=flag.metavar or metavar,
        is_flag=flag.kind == "switch" or None,
        multiple=flag.kind in ("texts", "settings", "variables", "tags", "speculative"),
        callback=_CALLBACKS.get(flag.kind),
        help=flag.help + repeatable,
        envvar=flag.variables,
        hidden=flag.in_file,
    )
    made.group, made.in_file = flag.group, flag.in_file
    return made


def _make_options(command: str, tag_flag: str | None) -> list[click.Option]:
    """All planning options of ``command``; without ``tag_flag``, not those of a company."""
    flags = [
        (field, flag)
        for field, flag in read_flags()
        if (tag_flag or flag.group != "Company") and (field != ONLY_DEPLOY or command == "deploy")
    ]
    flags.sort(key=lambda item: GROUPS.index(item[1].group))
    text = "Take drafter and K from this file of `peagle verdict`."
    verdict = option("--verdict FILE", text, FILE)
    verdict.group = "Speculation"
    return [*(make_option(field, flag, tag_flag or "--tag") for field, flag in flags), verdict]


def plan_options(command: Callable[..., Any], tag_flag: str | None = "--tag") -> Callable[..., Any]:
    """Add the argument PAIR|PLAN and all planning options to a ``ProjectCommand``, which receives
    ``plan``. Without ``tag_flag``, what a company prescribes is left out."""

    @click.pass_context
    @wraps(command)
    def with_plan(ctx: click.Context, /, pair: str, **parameters: Any) -> Any:
        chosen = {name: parameters.pop(name) for name in PLAN_FIELDS & parameters.keys()}
        return ctx.invoke(command, plan=planned(ctx, pair, chosen), **parameters)

    pair = click.argument("pair", metavar="PAIR|PLAN", required=False, shell_complete=complete_pair)
    image_from = option(
        "--image-from FILE",
        "The image of an endpoint with build_image in the project file: its address, from "
        "`peagle image build --address-file`. Without build_image the file is not read.",
        "file",
    )
    with_options = add_options(_make_options(command.__name__, tag_flag))(with_plan)
    return pair(image_from(with_options))


def planning_options(without: Collection[str]) -> Callable[[Callable[..., Any]], Any]:
    """Add the planning options except ``without`` to a command that calls ``planned`` itself."""

    return add_options([part for part in _make_options("", "--tag") if part.name not in without])


def field_options(*fields: str) -> list[Option]:
    """The options of these fields, also of keys of the file."""
    flags = {name: flag._replace(in_file=False, group="Options") for name, flag in read_flags()}
    return [make_option(field, flags[field]) for field in fields]


def engine_options(of: type[EngineOptions]) -> Callable[[Callable[..., Any]], Any]:
    """Add the options that ``of`` takes to a command."""
    return add_options([make_option(field, flag, of=of) for field, flag in read_flags(of)])


def given_options(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that parameters of click set; one that is off, or empty, is not."""
    fields = {
        name: value
        for name, value in parameters.items()
        if value is not None and value is not False and value not in ({}, ())
    }
    if fields.pop("no_speculation", False):
        fields["speculation"] = False
    return fields


def planned(ctx: click.Context, pair: str, chosen: dict[str, Any]) -> Plan:
    """The plan in the file ``pair``, or for that pair and those options, with the command's
    catalogue; with ``--online``, with AWS's and the Hub's answers."""
    online = ctx.params.get("online")  # only `peagle plan` has it
    options = given_options(chosen)
    if is_here(ctx) and options.get("instance_type", HERE) == HERE:
        options |= {"instance_type": HERE, "copies": options.get("copies", 1)}
    if is_plan_file(pair):
        plan = read_plan(Path(pair))
        for name, value in options.items():
            # It has its own region and tags; variables such as AWS_REGION do not override it.
            is_variable = ctx.get_parameter_source(name) is ParameterSource.ENVIRONMENT
            if not is_variable and (name != "region" or value != plan.region):
                flag = typed_flag(ctx, (name, f"no_{name}")) or f"--{name.replace('_', '-')}"
                message = f"{flag} cannot be combined with a plan file ({pair})"
                raise OptionsConflict(message, "omit it, or create a new plan")
        if not online:
            return plan
        from peagle.session import plan_file_online

        return plan_file_online(_started_session(ctx), plan, command_catalog(ctx))
    checkpoint = _read_own_target(ctx, pair)
    verdict = options.pop("verdict", None)
    if checkpoint is not None:
        options["target_checkpoint"] = checkpoint
    catalog = command_catalog(ctx)
    reader = own_target.head_reader(catalog, pair, _aws(ctx)) if _is_online(ctx) else None
    with view.show_hashing():
        if online:
            from peagle.session import plan_pair_online

            session = _started_session(ctx)
            return plan_pair_online(session, pair, options, catalog, reader, verdict)
        return own_target.plan_pair(pair, options, catalog, reader, verdict)


def plan_in_project(
    ctx: click.Context, name: str, path: Path | None = None, image: str | None = None
) -> Plan:
    """The plan that the command ``name`` would make of the endpoint that this command is about, of
    its project file or the one at ``path``, with that ``image``."""
    root, choice = ctx.find_root(), ctx.meta[CHOICE]
    command = root_group(ctx).get_command(root, name)
    assert command is not None
    words = [choice.endpoint, "--project", str(path or choice.project.path)]
    words += ["--environment", choice.environment] if choice.environment else []
    words += ["--image", image] if image else []
    meta = dict(ctx.meta)
    other = command.make_context(name, words, parent=root)
    chosen = {name: other.params[name] for name in PLAN_FIELDS & other.params.keys()}
    plan = planned(other, chosen.pop("pair"), chosen)
    ctx.meta.update(meta)
    return plan


_OWN_TARGETS = "peagle.own-targets"
"""Key in click's ``Context.meta``: location -> checkpoint of a target of the user's own."""


def _read_own_target(ctx: click.Context, pair: str) -> Checkpoint | None:
    """The checkpoint of a target that the catalogue does not have, which joins the command's
    catalogue. Raises NotFound for one elsewhere where the command is not online."""

    def read(location: str) -> Checkpoint:
        if not (is_s3_uri(location) or own_target.is_on_hub(location)):
            return checkpoint_at(location)
        if _is_online(ctx):
            return checkpoint_at(location, _aws(ctx))
        command: tuple[str, ...] = ("peagle", "plan", pair, "--online")
        command += () if ctx.command.name == "plan" else ("--output", "plan.json")
        raise own_target.target_not_read(location, command, command_catalog(ctx))

    checkpoints: dict[str, Checkpoint | None] = ctx.meta.setdefault(_OWN_TARGETS, {})
    if pair not in checkpoints:
        catalog, checkpoints[pair] = own_target.with_own_target(command_catalog(ctx), pair, read)
        ctx.meta[CATALOG] = catalog
    return checkpoints[pair]


def _aws(ctx: click.Context) -> AwsOf:
    region = ctx.params.get("region") or DEFAULT_REGION
    return lambda: _started_session(ctx).aws(region)


def _started_session(ctx: click.Context) -> Session:
    from peagle.cli.session import new_session  # most plans send nothing

    session = new_session(None, ctx.params.get("profile"), bool(ctx.params.get("sandbox")))
    session.start()
    return session


def _is_online(ctx: click.Context) -> bool:
    """Whether a model may be read from S3 or the Hub: some commands use the network in any case."""
    return bool(ctx.params.get("online")) or ctx.command.name in ("compare", "deploy", "up")
