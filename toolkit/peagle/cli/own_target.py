"""The user's own target as PAIR of a command that plans, and where its files may be read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from peagle import api
from peagle.checkpoints.models import Checkpoint
from peagle.cli.context import typed_command
from peagle.cli.options import command_catalog, set_command_catalog
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
    from peagle.cli.account import chosen_account  # imports boto3

    account = chosen_account(ctx.params["profile"], ctx.params["sandbox"])
    account.start()
    return account


def _is_online(ctx: click.Context) -> bool:
    return bool(ctx.params.get("online")) or ctx.command.name in _ONLINE


def _read_target(ctx: click.Context, location: str) -> Checkpoint:
    if not (is_s3_uri(location) or api.is_on_hub(location)):
        return api.checkpoint_at(location)
    if not _is_online(ctx):
        command: tuple[str, ...]
        command = ("peagle", "plan", location, "--online", "--output", "plan.json")
        if ctx.command.name == "plan":
            command = (*typed_command(ctx, "plan"), "--online")
        raise api.target_not_read(location, command, command_catalog(ctx))
    region = ctx.params.get("region") or DEFAULT_REGION
    return api.checkpoint_at(location, lambda: account_of(ctx).connect(region))
