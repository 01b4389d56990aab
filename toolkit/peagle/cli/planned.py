"""How PAIR|PLAN with the planning options of a command becomes a Plan.

A target of the user's own is read and joins the command's catalogue, from a folder, or from S3 and
the Hub where the command may use the network.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from peagle import api
from peagle.catalog.schema import Catalog
from peagle.checkpoints.models import Checkpoint
from peagle.cli.context import is_plan_file
from peagle.cli.options import (
    PLAN_FIELDS,
    command_catalog,
    set_command_catalog,
)
from peagle.cli.output.progress import show_hashing
from peagle.cli.project import CHOICE, project_words
from peagle.errors import Fix, OptionsConflict
from peagle.planning import Plan
from peagle.planning.options import Options, arguments
from peagle.planning.runtime import DEFAULT_REGION
from peagle_serve.contract import is_s3_uri

if TYPE_CHECKING:
    from peagle.cli.account import Account
    from peagle.weights.layout import AwsOf


_OWN_TARGETS = "peagle.own-targets"
"""Key in click's ``Context.meta`` of the checkpoints of targets that are not in the catalogue, by
the location that the user typed; ``None`` where the catalogue has the target."""

_ONLINE = ("compare", "deploy")
"""Commands that use the network in any case, so that they also read a model there."""


def planned(ctx: click.Context, pair: str, chosen: dict[str, Any]) -> Plan:
    """The plan in the file ``pair``, or the plan for that pair and those options: with the
    command's catalogue and, if it has ``--online``, with what AWS and the Hub answer."""
    if is_plan_file(pair):
        # A plan file has its own region and tags; variables such as AWS_REGION do not override it.
        sources = {name: ctx.get_parameter_source(name) for name in chosen}
        chosen = {
            name: None if sources[name] is ParameterSource.ENVIRONMENT else value
            for name, value in chosen.items()
        }
        reader = None
    else:
        chosen = with_own_target(ctx, pair, chosen)
        reader = reader_of_heads(ctx, pair)
    with show_hashing():
        if ctx.params.get("online"):  # only `peagle plan` has it
            return _online_plan(ctx, pair, chosen, reader)
        return resolve_plan(pair, chosen, command_catalog(ctx), reader)


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
    chosen = {one: other.params[one] for one in PLAN_FIELDS & other.params.keys()}
    plan = planned(other, chosen.pop("pair"), chosen)
    ctx.meta.update(meta)
    return plan


def plan_on_type(ctx: click.Context, instance_type: str) -> Plan:
    """The plan of the command's PAIR and planning options on another instance type."""
    chosen = {name: ctx.params[name] for name in PLAN_FIELDS & ctx.params.keys()}
    pair = chosen.pop("pair")
    chosen = {**chosen, "instance_type": instance_type}
    if is_plan_file(pair):
        return resolve_plan(pair, chosen, command_catalog(ctx))
    chosen = with_own_target(ctx, pair, chosen)
    return resolve_plan(pair, chosen, command_catalog(ctx), reader_of_heads(ctx, pair))


def _online_plan(
    ctx: click.Context, pair: str, chosen: dict[str, Any], reader: AwsOf | None
) -> Plan:
    """The plan for PAIR|PLAN and the chosen options, with today's price, the Hub's commits, and
    findings about quota and weights. Of a plan file only the price and missing pins change.

    Raises what planning raises, and UserError for a wrong profile.
    """
    account = account_of(ctx)
    catalog = command_catalog(ctx)
    if is_plan_file(pair):
        return api.plan_file_online(account, resolve_plan(pair, chosen, catalog), catalog)
    given, verdict = _of_pair(chosen)
    return api.plan_pair_online(account, pair, given, catalog, reader, verdict)


def resolve_plan(
    pair: str,
    chosen: dict[str, Any],
    catalog: Catalog,
    aws_of: AwsOf | None = None,
) -> Plan:
    """The plan in the file ``pair``, or the plan for that pair and those options.

    With ``aws_of`` the user's own head is read from any location, else only from a folder.
    """
    if is_plan_file(pair):
        return _read_plan(Path(pair), _given(chosen))
    given, verdict = _of_pair(chosen)
    return api.plan_pair(pair, given, catalog, aws_of, verdict)


def _given(chosen: dict[str, Any]) -> dict[str, Any]:
    """The options that are set."""
    return {
        name: value
        for name, value in chosen.items()
        if value is not None and value is not False and value not in ({}, ())
    }


def _of_pair(chosen: dict[str, Any]) -> tuple[dict[str, Any], Path | None]:
    """The fields of Options that are set, and the file of ``--verdict``."""
    given = _given(chosen)
    verdict = given.pop("verdict", None)
    speculation = not given.pop("no_speculation", False)
    return {**given, "speculation": speculation}, verdict


def _read_plan(path: Path, given: dict[str, Any]) -> Plan:
    plan = api.read_plan(path)
    region = given.pop("region", plan.region)
    if given or region != plan.region:
        typed = _as_typed(*next(iter((given or {"region": region}).items())))
        option = typed[0] if typed else next(iter(given))  # else a key of the project file
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


def with_own_target(ctx: click.Context, pair: str, chosen: dict[str, Any]) -> dict[str, Any]:
    """``chosen`` with the checkpoint of a target that the catalogue does not have, which joins the
    command's catalogue: from a folder, and where the command is online from S3 and the Hub.

    Raises what reading raises, and NotFound where the command is not online.
    """
    read: dict[str, Checkpoint | None] = ctx.meta.setdefault(_OWN_TARGETS, {})
    if pair not in read:
        catalog = command_catalog(ctx)
        own = api.with_own_target(catalog, pair, lambda location: _read_target(ctx, location))
        read[pair] = own.checkpoint
        set_command_catalog(ctx, own.catalog)
    return {**chosen, "target_checkpoint": read[pair]}


def reader_of_heads(ctx: click.Context, pair: str) -> AwsOf | None:
    """What reads a head of the user's own in S3 or on the Hub, where it must be read: the command
    is online, and the target of ``pair`` has no drafter whose kind could be assumed."""
    if not _is_online(ctx) or api.find_pair(command_catalog(ctx), pair).target.drafters:
        return None
    region = ctx.params.get("region") or DEFAULT_REGION
    return lambda: account_of(ctx).connect(region)


def account_of(ctx: click.Context) -> Account:
    """The AWS that the command's ``--profile`` and ``--sandbox`` choose, started if needed."""
    from peagle.cli.account import started_account  # imports boto3

    return started_account(ctx)


def _is_online(ctx: click.Context) -> bool:
    return bool(ctx.params.get("online")) or ctx.command.name in _ONLINE


def _read_target(ctx: click.Context, location: str) -> Checkpoint:
    if not (is_s3_uri(location) or api.is_on_hub(location)):
        return api.checkpoint_at(location)
    if not _is_online(ctx):
        command: tuple[str, ...]
        command = ("peagle", "plan", location, "--online", "--output", "plan.json")
        if ctx.command.name == "plan":
            command = ("peagle", "plan", ctx.params["pair"], "--online")
        raise api.target_not_read(location, command, command_catalog(ctx))
    region = ctx.params.get("region") or DEFAULT_REGION
    return api.checkpoint_at(location, lambda: account_of(ctx).connect(region))
