"""How PAIR|PLAN with the planning options of a command becomes a Plan.

A target of the user's own is read and joins the command's catalogue, from a folder, or from S3 and
the Hub where the command may use the network.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from peagle.catalog import find_pair
from peagle.checkpoints.models import Checkpoint
from peagle.cli.context import is_plan_file
from peagle.cli.options import PLAN_FIELDS, command_catalog, set_command_catalog
from peagle.cli.project import CHOICE, project_words
from peagle.cli.session import started_session
from peagle.cli.view.progress import show_hashing
from peagle.errors import Fix, OptionsConflict
from peagle.options import Options, arguments
from peagle.planning import Plan
from peagle.planning.runtime import DEFAULT_REGION
from peagle.render import read_plan
from peagle.session import plan_file_online, plan_pair, plan_pair_online
from peagle.weights.layout import AwsOf, checkpoint_at
from peagle.weights.own_target import is_on_hub, target_not_read, with_own_target
from peagle_serve.contract import is_s3_uri

_OWN_TARGETS = "peagle.own-targets"
"""Key in click's ``Context.meta`` of the checkpoints of targets that are not in the catalogue, by
the location that the user typed; ``None`` where the catalogue has the target."""

_ONLINE = ("compare", "deploy")
"""Commands that use the network in any case, so that they also read a model there."""


def planned(ctx: click.Context, pair: str, chosen: dict[str, Any]) -> Plan:
    """The plan in the file ``pair``, or the plan for that pair and those options: with the
    command's catalogue and, if it has ``--online``, with today's price, the Hub's commits, and
    findings about quota and weights.

    Raises what planning and reading raise.
    """
    online = ctx.params.get("online")  # only `peagle plan` has it
    if is_plan_file(pair):
        # A plan file has its own region and tags; variables such as AWS_REGION do not override it.
        typed = {
            name: value
            for name, value in chosen.items()
            if ctx.get_parameter_source(name) is not ParameterSource.ENVIRONMENT
        }
        plan = _read_plan(Path(pair), _options_set(typed))
        if online:
            plan = plan_file_online(started_session(ctx), plan, command_catalog(ctx))
        return plan
    checkpoint = _own_target(ctx, pair)
    options = _options_set(chosen)
    verdict = options.pop("verdict", None)
    options["speculation"] = not options.pop("no_speculation", False)
    if checkpoint is not None:
        options["target_checkpoint"] = checkpoint
    catalog = command_catalog(ctx)
    # A head of the user's own is read only if its kind cannot be assumed from other drafters.
    reads_head = _is_online(ctx) and not find_pair(catalog, pair).target.drafters
    reader = _aws(ctx) if reads_head else None
    with show_hashing():
        if online:
            return plan_pair_online(started_session(ctx), pair, options, catalog, reader, verdict)
        return plan_pair(pair, options, catalog, reader, verdict)


def plan_in_project(
    ctx: click.Context, name: str, path: Path | None = None, image: str | None = None
) -> Plan:
    """The plan that the command ``name`` would make of the endpoint that this command is about, of
    its project file or the one at ``path``, with that ``image``. Raises what planning raises."""
    root = ctx.find_root()
    assert isinstance(root.command, click.Group)
    command = root.command.get_command(root, name)
    assert command is not None
    meta = dict(ctx.meta)
    words = project_words(ctx.meta[CHOICE], path) + (["--image", image] if image else [])
    other = command.make_context(name, words, parent=root)
    chosen = {option: other.params[option] for option in PLAN_FIELDS & other.params.keys()}
    plan = planned(other, chosen.pop("pair"), chosen)
    ctx.meta.update(meta)
    return plan


def plan_on_type(ctx: click.Context, instance_type: str) -> Plan:
    """The plan of the command's PAIR and planning options on another instance type."""
    chosen = {name: ctx.params[name] for name in PLAN_FIELDS & ctx.params.keys()}
    return planned(ctx, chosen.pop("pair"), {**chosen, "instance_type": instance_type})


def _options_set(chosen: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in chosen.items()
        if value is not None and value is not False and value not in ({}, ())
    }


def _read_plan(path: Path, options: dict[str, Any]) -> Plan:
    plan = read_plan(path)
    region = options.pop("region", plan.region)
    if options or region != plan.region:
        typed = _as_typed(*next(iter((options or {"region": region}).items())))
        option = typed[0] if typed else next(iter(options))  # else a key of the project file
        raise OptionsConflict(
            f"{option} cannot be combined with a plan file ({path})",
            Fix(
                f"omit {option}, or create a new plan",
                ("peagle", "plan", "PAIR", *typed, "--output", "FILE"),
            ),
        )
    return plan


def _as_typed(field: str, value: Any) -> tuple[str, ...]:
    """The option on a command line."""
    if field == "no_speculation":
        field, value = "speculation", False
    if field == "verdict":
        return ("--verdict", str(value))
    words = arguments(Options(pair="").model_copy(update={field: value}))
    return tuple(words)


def _own_target(ctx: click.Context, pair: str) -> Checkpoint | None:
    """The checkpoint of a target that the catalogue does not have, which joins the command's
    catalogue. Raises NotFound for one in S3 or on the Hub where the command is not online."""
    read: dict[str, Checkpoint | None] = ctx.meta.setdefault(_OWN_TARGETS, {})
    if pair not in read:
        catalog = command_catalog(ctx)
        own_target = with_own_target(catalog, pair, lambda location: _read_target(ctx, location))
        read[pair] = own_target.checkpoint
        set_command_catalog(ctx, own_target.catalog)
    return read[pair]


def _read_target(ctx: click.Context, location: str) -> Checkpoint:
    if not (is_s3_uri(location) or is_on_hub(location)):
        return checkpoint_at(location)
    if not _is_online(ctx):
        command: tuple[str, ...]
        command = ("peagle", "plan", location, "--online", "--output", "plan.json")
        if ctx.command.name == "plan":
            command = ("peagle", "plan", ctx.params["pair"], "--online")
        raise target_not_read(location, command, command_catalog(ctx))
    return checkpoint_at(location, _aws(ctx))


def _aws(ctx: click.Context) -> AwsOf:
    region = ctx.params.get("region") or DEFAULT_REGION
    return lambda: started_session(ctx).aws(region)


def _is_online(ctx: click.Context) -> bool:
    return bool(ctx.params.get("online")) or ctx.command.name in _ONLINE
