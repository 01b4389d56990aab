"""``peagle weights``: a pair's weights in S3, in the layout that every renderer can express."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import click

from peagle.aws.client import Aws
from peagle.catalog import load_catalog
from peagle.catalog.loading import load_storage
from peagle.checkpoints.locations import is_location, means_folder, split_revision
from peagle.cli.account import Account, account_options
from peagle.cli.context import PeagleCommand
from peagle.cli.options import catalog_of, refuse_errors
from peagle.cli.output.console import json_option, print_json, show_findings
from peagle.cli.output.progress import StatusLine
from peagle.cli.output.weights import (
    describe,
    in_account,
    look_document,
    other_origins,
    say_done,
    show_look,
    show_survey,
    sync_document,
    use_command,
)
from peagle.cli.weights_remove import (
    Left,
    ask,
    even_if_used_option,
    look_there,
    refuse_replaced,
    region_option,
    remove_command,
    take_over_option,
)
from peagle.errors import Refused, UserError
from peagle.findings import Finding
from peagle.planning.drafter import choose_drafter
from peagle.planning.plan import Options, Weights
from peagle.planning.weights import place_weights
from peagle.s3uri import is_s3_uri
from peagle.weights import Moment, Origin, Outcome, Place, Survey, origin_of, place_of, survey, sync
from peagle.weights.manifest import Copied
from peagle.weights.sync_plan import half_bytes


@click.group(epilog="Example: peagle weights sync gpt-oss-20b s3://my-models/gpt-oss-20b")
def weights() -> None:
    """Copy the weights of a pair to S3, and see what lies there."""


@weights.command(
    "sync",
    cls=PeagleCommand,
    epilog="Example: peagle weights sync gpt-oss-20b s3://my-models/gpt-oss-20b --region eu-west-1",
)
@click.argument("pair")
@click.argument("destination", metavar="S3://BUCKET/PREFIX")
@click.option("--target-only", is_flag=True, help="Copy the target's weights only.")
@click.option("--drafter-only", is_flag=True, help="Copy the drafter's weights only.")
@click.option("--target-from", metavar="PLACE", help="Folder, s3://... or hub id of the target.")
@click.option("--drafter-from", metavar="PLACE", help="The same of the drafter.")
@region_option
@account_options
@take_over_option
@even_if_used_option
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
@click.pass_context
def sync_command(
    ctx: click.Context,
    pair: str,
    destination: str,
    target_only: bool,
    drafter_only: bool,
    target_from: str | None,
    drafter_from: str | None,
    region: str,
    account: Account,
    take_over: bool,
    even_if_used: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Copy PAIR into the folders target/ and drafter/ of one prefix.

    Only files that vLLM reads, in parts, several at a time, verified by checksums. Shows what,
    where and at what price, and asks. The same command again goes on where it was interrupted.
    Who comes while another copies there is told who that is. Other weights are not replaced while
    an endpoint that was deployed from this machine starts from them.
    """
    place = place_of(destination)
    given = {"target": target_from, "drafter": drafter_from}
    wanted, copied, findings = _wanted(pair, given, target_only, drafter_only, catalog_of(ctx))
    account.start()
    aws = account.connect(region)
    price = load_storage(catalog_of(ctx)).price_in(region)
    with Left(place, *_commands(ctx, account)) as left:
        found, half = _look(aws, place, wanted)
        show_survey(pair, found, price, account.sandbox, half)
        about = (*other_origins(found), *found.findings)
        refuse_errors((*findings, *(in_account(finding, account) for finding in about)))
        if not even_if_used:
            refuse_replaced(about, aws.scope, account)
        if not yes:
            ask(f"Copy this to {place.uri}?", "not copied")
        started = time.monotonic()
        outcome = _copy(aws, found, copied, take_over, left)
        seconds = time.monotonic() - started
    use = use_command(pair, place, outcome.manifest, region, account)
    if as_json:
        print_json(sync_document(pair, found, outcome, seconds, price, use))
    else:
        say_done(found, outcome, seconds, use)


def _look(aws: Aws, place: Place, wanted: dict[str, Weights]) -> tuple[Survey, int]:
    """What a copy would do, and the bytes there in parts of files that are not whole yet."""
    with StatusLine() as status:
        status.show("Looking", place.uri)
        origins = {part: origin_of(w, lambda: aws) for part, w in wanted.items()}
        _refuse_itself(place, origins)
        found = survey(aws, place, origins)
        return found, half_bytes(aws, found)


def _copy(aws: Aws, found: Survey, copied: Copied, take_over: bool, left: Left) -> Outcome:
    """Copy, and keep in ``left`` how far that is."""

    def tell(moment: Moment) -> None:
        left.last = moment
        status.tell(describe(moment))

    left.copies = True
    with StatusLine() as status:
        outcome = sync(aws, found, copied, tell, take_over)
        if left.last is not None:
            status.tell(describe(left.last), news=True)
        return outcome


def _wanted(
    pair: str, given: dict[str, str | None], target_only: bool, drafter_only: bool,
    own_catalog: Path | None,
) -> tuple[dict[str, Weights], Copied, tuple[Finding, ...]]:  # fmt: skip
    """The weights of target and drafter, the pair, and what is to be said of the choice."""
    if target_only and drafter_only:
        raise UserError("--target-only and --drafter-only exclude each other", "leave out both")
    skipped = "drafter" if target_only else "target" if drafter_only else None
    if skipped and given[skipped]:
        kept = "target" if target_only else "drafter"
        raise UserError(f"--{skipped}-from has no place beside --{kept}-only", "leave one out")
    # A head of the user's own takes the place of any other, be that public or not.
    speculation = not (target_only or given["drafter"])
    options, catalog = Options(pair=pair, speculation=speculation), load_catalog(own_catalog)
    chosen = choose_drafter(options, catalog)
    placed = place_weights(options, catalog, chosen.value, "weights").value
    found = {"target": placed.target, "drafter": placed.drafter}
    found = {part: _given(given[part]) if given[part] else w for part, w in found.items()}
    if drafter_only and found["drafter"] is None:
        raise UserError(f"{pair} drafts without weights", "leave out --drafter-only")
    drafter = chosen.value.drafter
    copied = Copied(
        pair=chosen.value.name,
        parallel_drafting=drafter.parallel_drafting if drafter else None,
        given=frozenset(part for part, location in given.items() if location),
    )
    wanted = {part: w for part, w in found.items() if w and part != skipped}
    return wanted, copied, chosen.findings


def _given(location: str | None) -> Weights:
    """Weights as ``--target-from`` and ``--drafter-from`` name them."""
    assert location is not None
    if is_s3_uri(location):
        return Weights(kind="s3", location=place_of(location).uri, engine_path=location)
    if means_folder(location):
        folder = str(Path(location).expanduser().resolve())
        return Weights(kind="directory", location=folder, engine_path=folder)
    if not is_location(location):
        raise UserError(f"{location!r} is no place of weights",
                        "write ./folder, s3://bucket/prefix, or org/name of the hub")  # fmt: skip
    repository, revision = split_revision(location)
    return Weights(kind="hub", location=repository, revision=revision, engine_path=repository)


def _refuse_itself(place: Place, origins: dict[str, Origin]) -> None:
    for part, origin in origins.items():
        source = origin.copied_from
        if source and source.bucket == place.bucket and f"{place.prefix}{part}/" == source.prefix:
            raise UserError(f"the {part} would be copied onto itself", "name another prefix")


def _commands(ctx: click.Context, account: Account) -> tuple[str, str]:
    """The command as it was given, for going on with it, and the one that takes it all back."""
    go_on = ["peagle", "weights", "sync", ctx.params["pair"], ctx.params["destination"]]
    back = ["peagle", "weights", "remove", ctx.params["destination"]]
    for name in ("target_only", "drafter_only", "target_from", "drafter_from", "even_if_used",
                 "region"):  # fmt: skip
        if ctx.get_parameter_source(name) is not click.core.ParameterSource.COMMANDLINE:
            continue
        flag, value = f"--{name.replace('_', '-')}", ctx.params[name]
        words = [flag] if value is True else [flag, str(value)]
        go_on += words
        back += words if name == "region" else []
    return shlex.join(go_on) + account.option, shlex.join(back) + account.option


@weights.command(
    "list", cls=PeagleCommand, epilog="Example: peagle weights list s3://my-models/gpt-oss-20b"
)
@click.argument("place", metavar="S3://BUCKET/PREFIX")
@region_option
@account_options
@json_option
@click.pass_context
def list_command(
    ctx: click.Context, place: str, region: str, account: Account, as_json: bool
) -> None:
    """Show what lies at a prefix: whole or half, file by file, with its checksums; and what was
    compiled for it.

    The exit code is 3 when a copy is not whole, or may not be mounted.
    """
    found = look_there(account.connect(region), place, account)
    price = load_storage(catalog_of(ctx)).price_in(region)
    if as_json:
        print_json(look_document(found, price, account.option))
    else:
        show_look(found, price, account.option)
        show_findings(tuple(in_account(finding, account) for finding in found.findings))
    if not found.mountable:
        ctx.exit(Refused.exit_code)


weights.add_command(remove_command)
