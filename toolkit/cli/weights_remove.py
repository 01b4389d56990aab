"""``peagle weights remove``: what a sync brought to a prefix, or one warm start beside it."""

from __future__ import annotations

import click

from toolkit.aws.session import Aws
from toolkit.aws.weights.looking import Look, remove, remove_warm
from toolkit.catalog.loading import load_storage
from toolkit.cli.cloud import Account, account_options
from toolkit.cli.console import json_option, print_json, say
from toolkit.cli.resolving import catalog_of
from toolkit.cli.weights_options import (
    ask,
    even_if_used_option,
    look_there,
    region_option,
    take_over_option,
)
from toolkit.cli.weights_used import refuse_used
from toolkit.cli.weights_words import show_look, size_words, warm_words
from toolkit.errors import NotFound, UserError


@click.command(
    "remove",
    epilog="Examples: peagle weights remove s3://my-models/tiny    "
    "peagle weights remove s3://my-models/tiny --warm KEY",
)
@click.argument("place", metavar="S3://BUCKET/PREFIX")
@region_option
@account_options
@take_over_option
@click.option("--warm", "key", metavar="KEY", help="Only the warm start of that key.")
@even_if_used_option
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
@click.pass_context
def remove_command(
    ctx: click.Context,
    place: str,
    region: str,
    account: Account,
    take_over: bool,
    key: str | None,
    even_if_used: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Remove what `peagle weights sync` brought to a prefix, half-uploaded files included, and the
    warm starts beside it; or with --warm one warm start and nothing else.

    Other objects stay where they are. Refused while an endpoint that was deployed from this machine
    starts from these weights; without a warm start it starts as well, and takes longer.
    """
    if key and (take_over or even_if_used):
        raise UserError("--take-over and --even-if-used are for the weights, which --warm leaves",
                        "leave them out")  # fmt: skip
    aws = account.connect(region)
    found = look_there(aws, place, account)
    if key:
        return _remove_warm(aws, found, key, yes, as_json)
    uri = found.place.uri
    if not (found.manifest or found.warm):
        raise NotFound(f"`peagle weights sync` brought nothing to {uri}",
                       f"see it: peagle weights list {uri}{account.option}")  # fmt: skip
    if not even_if_used:
        refuse_used(found.place, aws.scope, account)
    if not as_json:
        show_look(found, load_storage(catalog_of(ctx)).price_in(region))
    if not yes:
        ask(f"Remove this from {uri}?", "not removed")
    remove(aws, found, take_over)
    return _tell_removed(found, as_json)


def _remove_warm(aws: Aws, found: Look, key: str, yes: bool, as_json: bool) -> None:
    one, uri = found.artefact(key), found.place.uri
    if not as_json:
        click.echo(warm_words(one))
    if not yes:
        ask(f"Remove this warm start from {uri}?", "not removed")
    remove_warm(aws, found.place, one)
    if as_json:
        print_json({"uri": uri, "folders": [], "warm": [key], "bytes": one.size})
    else:
        say(f"Removed the warm start {key} from {uri}, {size_words(one.size)}: starts that took it "
            "compile anew.")  # fmt: skip


def _tell_removed(found: Look, as_json: bool) -> None:
    uri, warm, left = found.place.uri, [one.key for one in found.warm], len(found.others)
    if as_json:
        size = found.size - sum(found.others.values())
        print_json({"uri": uri, "folders": list(found.files), "warm": warm, "bytes": size})
        return
    count = len(warm)
    also = f", {count} warm start{'s' if count > 1 else ''} with it" if count else ""
    say(f"Removed from {uri}{also}; {left} other objects are left there.")
