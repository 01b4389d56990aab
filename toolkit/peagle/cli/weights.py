"""``peagle weights``: copy the weights of a pair to S3; list and remove them."""

from __future__ import annotations

import time
from typing import Any

import click

from peagle.aws.client import Aws
from peagle.catalog.loading import load_storage
from peagle.cli.context import PeagleCommand, in_context, own_command
from peagle.cli.options import (
    catalog_of,
    command_catalog,
    complete_pair,
    refuse_errors,
    region_option,
    yes_option,
)
from peagle.cli.plan_options import field_options
from peagle.cli.session import Session, account_options
from peagle.cli.view.console import (
    confirm,
    json_option,
    print_document,
    print_findings,
    print_json,
    print_status,
)
from peagle.cli.view.progress import StatusLine
from peagle.cli.view.weights import (
    SyncProgressBar,
    inspect_document,
    print_weights,
    resume_hint,
    say_synced,
    show_sync_plan,
    sync_document,
    use_command,
    warm_start_document,
)
from peagle.deploy.records import refuse_weights_in_use
from peagle.errors import Fix, NotFound, OptionsConflict, Refused, command_line
from peagle.planning.company import Company, check_company
from peagle.text import format_size
from peagle.weights.inspect import StoredWeights, inspect_weights, remove_warm_start, remove_weights
from peagle.weights.layout import PARTS, weights_at, weights_prefix
from peagle.weights.sources import weights_of_pair
from peagle.weights.sync import REPLACING_CODES, SyncPlan, plan_sync, sync_weights

_take_over_option = click.option(
    "--take-over", is_flag=True, help="Take over the lock of a crashed sync."
)

_even_if_used_option = click.option(
    "--even-if-used", is_flag=True, help="Proceed even if an endpoint uses these weights."
)


@click.group(epilog="Example: peagle weights sync gpt-oss-20b s3://my-models/gpt-oss-20b")
def weights() -> None:
    """Copy weights to S3; list and remove them."""


@weights.command(
    "sync",
    cls=PeagleCommand,
    epilog="Example: peagle weights sync gpt-oss-20b s3://my-models/gpt-oss-20b",
)
@click.argument("pair", shell_complete=complete_pair)
@click.argument("destination", metavar="S3://BUCKET/PREFIX")
@click.option("--target-only", is_flag=True, help="Copy the target's weights only.")
@click.option("--drafter-only", is_flag=True, help="Copy the drafter's weights only.")
@click.option("--target-from", metavar="PLACE", help="Folder, s3://... or Hub id of the target.")
@click.option("--drafter-from", metavar="PLACE", help="Folder, s3://... or Hub id of the drafter.")
@field_options("kms_key", "tags")
@region_option("the bucket")
@account_options
@_take_over_option
@_even_if_used_option
@yes_option
@json_option
@click.pass_context
def sync_command(
    ctx: click.Context,
    /,
    pair: str,
    destination: str,
    region: str,
    session: Session,
    take_over: bool,
    even_if_used: bool,
    yes: bool,
    as_json: bool,
    kms_key: str | None,
    tags: dict[str, str],
    **sources: Any,
) -> None:
    """Copy PAIR into the folders target/ and drafter/ below PREFIX.

    Copies only files that vLLM reads, several parts at a time, and verifies checksums. Shows the
    price and asks first. The same command again copies what is missing. A second copy to the
    same prefix is rejected while one runs. Weights that an endpoint deployed from this machine uses
    are not overwritten.
    """
    place = weights_prefix(destination)
    company = Company(kms_key=kms_key, tags=tags)
    check_company(company)
    parts = _parts(**sources)
    locations = {part: weights_at(source) for part in parts if (source := sources[f"{part}_from"])}
    chosen = weights_of_pair(command_catalog(ctx), pair, locations, parts)
    started, aws = session.start_and_connect(region)
    price = load_storage(catalog_of(ctx)).price_in(region)
    again = own_command(ctx, without=("--yes", "-y", "--json", "--take-over"))
    bar = SyncProgressBar()
    with resume_hint(bar, place, again, in_context(("peagle", "weights", "remove", destination))):
        with session.stopped_on_error(started):
            with StatusLine() as status:
                status.show("Inspecting", place.uri)
                plan = plan_sync(aws, place, chosen)
            show_sync_plan(pair, plan, price, session.sandbox)
            refuse_errors((*chosen.findings, *plan.findings))
            if not even_if_used:
                _refuse_replacing_used(plan, aws)
            if not yes:
                confirm(f"Copy this to {place.uri}?", "not copied")
        begun = time.monotonic()
        with bar:
            result = sync_weights(aws, plan, bar.update, take_over, company)
        seconds = time.monotonic() - begun
    use = command_line(use_command(pair, place, result.manifest, region, session))
    if as_json:
        print_json(sync_document(pair, plan, result, seconds, price, use))
    else:
        say_synced(plan, result, seconds, use)


def _refuse_replacing_used(plan: SyncPlan, aws: Aws) -> None:
    """Raise Refused if the sync would replace weights that a deployed endpoint uses."""
    replaced = {finding.where for finding in plan.findings if finding.code in REPLACING_CODES}
    reason = "the next instance of the endpoint would start with different weights"
    refuse_weights_in_use(replaced, aws.scope, reason, "use a different prefix, or ")


def _parts(
    target_only: bool, drafter_only: bool, target_from: str | None, drafter_from: str | None
) -> tuple[str, ...]:
    if target_only and drafter_only:
        raise OptionsConflict(
            "--target-only and --drafter-only are mutually exclusive", "omit both"
        )
    for only, other, location in (
        (target_only, "--drafter-from", drafter_from),
        (drafter_only, "--target-from", target_from),
    ):
        if only and location:
            flag = "--target-only" if target_only else "--drafter-only"
            raise OptionsConflict(f"{other} cannot be combined with {flag}", "omit one of them")
    return ("target",) if target_only else ("drafter",) if drafter_only else PARTS


@weights.command(
    "list", cls=PeagleCommand, epilog="Example: peagle weights list s3://my-models/gpt-oss-20b"
)
@click.argument("place", metavar="S3://BUCKET/PREFIX")
@region_option("the bucket")
@account_options
@json_option
@click.pass_context
def list_command(
    ctx: click.Context, place: str, region: str, session: Session, as_json: bool
) -> None:
    """Show the weights at a prefix: every file with its state and checksum, and the warm starts.

    Exits with 3 if a copy is incomplete or the prefix cannot be mounted.
    """
    weights = inspect_weights(session.aws(region), weights_prefix(place))
    price = load_storage(catalog_of(ctx)).price_in(region)
    if as_json:
        print_json(inspect_document(weights, price))
    else:
        print_weights(weights, price)
        print_findings(weights.findings, err=True)
    if not weights.mountable:
        ctx.exit(Refused.exit_code)


@weights.command(
    "remove",
    cls=PeagleCommand,
    epilog="""\b
Examples:
  peagle weights remove s3://my-models/tiny
  peagle weights remove s3://my-models/tiny --warm KEY
""",
)
@click.argument("place", metavar="S3://BUCKET/PREFIX")
@region_option("the bucket")
@account_options
@_take_over_option
@click.option("--warm", "key", metavar="KEY", help="Only the warm start with that key.")
@_even_if_used_option
@yes_option
@json_option
@click.pass_context
def remove_command(
    ctx: click.Context,
    place: str,
    region: str,
    session: Session,
    take_over: bool,
    key: str | None,
    even_if_used: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Remove the weights that `peagle weights sync` copied to a prefix, unfinished uploads and warm
    starts; with --warm one warm start and nothing else.

    Other objects stay. Refused while an endpoint deployed from this machine uses these weights.
    """
    if key and (take_over or even_if_used):
        raise OptionsConflict("--take-over and --even-if-used cannot be combined with --warm",
                        "omit them: --warm keeps the weights")  # fmt: skip
    aws = session.aws(region)
    weights = inspect_weights(aws, weights_prefix(place))
    if key:
        return _remove_warm_start(aws, weights, key, yes, as_json)
    uri = weights.prefix.uri
    if not (weights.manifest or weights.warm):
        raise NotFound(f"no weights were synced to {uri}",
                       Fix("show its contents", ("peagle", "weights", "list", uri)),
                       code="nothing-synced")  # fmt: skip
    if not even_if_used:
        refuse_weights_in_use({uri}, aws.scope, "without these weights no new instance can start")
    if not as_json:
        print_weights(weights, load_storage(catalog_of(ctx)).price_in(region))
    if not yes:
        confirm(f"Remove this from {uri}?", "not removed")
    remove_weights(aws, weights, take_over)
    warm = [warm_start.key for warm_start in weights.warm]
    if as_json:
        size = weights.size - sum(weights.others.values())
        return print_json({"uri": uri, "folders": list(weights.files), "warm": warm, "bytes": size})
    also = f" and {len(warm)} warm start{'s' if len(warm) > 1 else ''}" if warm else ""
    return print_status(
        f"Removed the weights{also} from {uri}; {len(weights.others)} other objects stay."
    )


def _remove_warm_start(
    aws: Aws, weights: StoredWeights, key: str, yes: bool, as_json: bool
) -> None:
    warm_start, uri = weights.warm_start(key), weights.prefix.uri
    if not as_json:
        print_document(warm_start_document(warm_start))
    if not yes:
        confirm(f"Remove this warm start from {uri}?", "not removed")
    remove_warm_start(aws, weights.prefix, warm_start)
    if as_json:
        return print_json({"uri": uri, "folders": [], "warm": [key], "bytes": warm_start.size})
    return print_status(
        f"Removed the warm start {key} from {uri}, {format_size(warm_start.size)}. Engines that "
        "used it start cold."
    )
