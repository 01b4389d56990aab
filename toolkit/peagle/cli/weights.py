"""``peagle weights`` and ``warm``: weights and compile caches in S3."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click

from peagle.account import Account
from peagle.aws.client import Aws
from peagle.aws.s3 import delete_objects
from peagle.catalog.loading import load_table
from peagle.catalog.tables import StoragePrice, StorageTable
from peagle.cli import view
from peagle.cli.context import command_text, in_context, typed_command
from peagle.cli.deploy import show_and_refuse
from peagle.cli.local import local_image, show_copy
from peagle.cli.options import (
    add_options,
    catalog_of,
    command,
    complete_pair,
    deploy_options,
    option,
    print_and_refuse,
    region_option,
    yes_option,
)
from peagle.cli.plan_options import field_options, plan_options
from peagle.cli.project import ProjectCommand
from peagle.cli.session import NOT_REPEATED, Session, account_options
from peagle.deploy.context import limit_seconds
from peagle.deploy.records import refuse_weights_in_use
from peagle.engine.process import sigterm_as_interrupt
from peagle.engine.runner import LocalRunner
from peagle.engine.state import warm_folder
from peagle.errors import CloudError, Fix, NotFound, Refused, command_line
from peagle.findings import errors
from peagle.images.build import findings_on_this_machine
from peagle.planning import Plan
from peagle.planning.company import Company, check_company
from peagle.planning.runtime import DEFAULT_REGION
from peagle.render.image import is_own_image
from peagle.render.requests import pair_arguments
from peagle.sandbox.client import check_sandbox_engine
from peagle.text import format_duration, format_size, format_unit_price, format_usd, plain
from peagle.warm import (
    CollectedWarmStart,
    check_writable,
    collect_locally,
    collect_on_aws,
    collecting_plan,
    find_weights_prefix,
)
from peagle.weights import sync
from peagle.weights.bucket import Manifest
from peagle.weights.inspect import StoredWeights, inspect_weights, remove_weights
from peagle.weights.layout import PARTS, WeightsPrefix, weights_at, weights_prefix
from peagle_serve.contract import MODEL_FOLDER, VOCABULARY_FILE, VOCABULARY_VARIABLE, WARM_FOLDER

_even_if_used = option("--even-if-used", "Proceed even if an endpoint uses these weights.", bool)


@click.group(epilog="Example: peagle weights sync gpt-oss-20b s3://my-models/gpt-oss-20b")
def weights() -> None:
    """Copy weights to S3; list and remove them."""


@command("peagle weights sync gpt-oss-20b s3://my-models/gpt-oss-20b", name="sync", of=weights)
@click.argument("pair", shell_complete=complete_pair)
@click.argument("destination", metavar="S3://BUCKET/PREFIX")
@option("--target-only", "Copy the target's weights only.", bool)
@option("--drafter-only", "Copy the drafter's weights only.", bool)
@option("--target-from LOCATION", "Folder, s3://... or Hub id of the target.")
@option("--drafter-from LOCATION", "Folder, s3://... or Hub id of the drafter.")
@add_options(field_options("kms_key", "tags"))
@region_option("the bucket")
@account_options
@_even_if_used
@yes_option
@click.pass_context
def sync_command(
    ctx: click.Context,
    /,
    pair: str,
    destination: str,
    target_only: bool,
    drafter_only: bool,
    target_from: str | None,
    drafter_from: str | None,
    region: str,
    session: Session,
    even_if_used: bool,
    kms_key: str | None,
    tags: dict[str, str],
) -> None:
    """Copy PAIR into the folders target/ and drafter/ below PREFIX.

    Copies only files that vLLM reads, several parts at a time, and verifies checksums. Shows the
    price and asks first. The same command again copies what is missing. Weights that an endpoint
    deployed from this machine uses are not overwritten.
    """
    place = weights_prefix(destination)
    company = Company(kms_key=kms_key, tags=tags)
    check_company(company)
    parts = ("target",) if target_only else ("drafter",) if drafter_only else PARTS
    sources = {"target": target_from, "drafter": drafter_from}
    locations = {part: weights_at(source) for part, source in sources.items() if source}
    chosen = sync.find_pair_weights(session.catalog, pair, locations, parts)
    price = load_table(StorageTable, catalog_of(ctx)).price_in(region)
    aws = session.connect(region)
    with view.StatusLine() as status:
        status.show("Inspecting", place.uri)
        plan = sync.plan_sync(aws, place, chosen)
    title = f"{pair} to {place.uri} ({plan.region})"
    view.print_facts(_sync_facts(plan, price, session.sandbox), title=title)
    print_and_refuse((*chosen.findings, *plan.findings))
    if not even_if_used:
        refuse_weights_in_use(
            {finding.where for finding in plan.findings if finding.code in sync.REPLACING_CODES},
            aws.scope,
            "the next instance of the endpoint would start with different weights",
            "use a different prefix, or ",
        )
    view.confirm(f"Copy this to {place.uri}?", "not copied")
    begun = time.monotonic()
    result = _copy(aws, plan, company)
    seconds = time.monotonic() - begun
    use = command_line(use_command(pair, place, result.manifest, region, session))
    copied = f"{format_size(result.moved)} copied in {format_duration(seconds)}"
    files = _files_text(len(plan.files), plan.size)
    view.print_status(f"{place.uri} is complete: {files}, checksums match ({copied})")
    view.print_status("Use it", use)
    document = {
        "pair": pair,
        "uri": place.uri,
        "region": plan.region,
        "bytes": plan.size,
        "bytes_moved": result.moved,
        "seconds": round(seconds, 3),
        "usd_per_month": _usd_per_month(plan.size, price),
        "folders": {
            part: {
                "uri": place.part_uri(part),
                "source": folder.source,
                "files": {
                    name: {"bytes": entry.size, "checksum": entry.checksum}
                    for name, entry in folder.files.items()
                },
            }
            for part, folder in result.manifest.items()
        },
        "next": use,
    }
    return view.print_json(document)


def _copy(aws: Aws, plan: sync.SyncPlan, company: Company) -> sync.SyncResult:
    """Copy, with progress on stderr; after an error, print how to go on, or to clean up."""
    try:
        with sigterm_as_interrupt(), view.StatusLine() as status:
            return sync.sync_weights(aws, plan, partial(show_copy, status), company)
    except (CloudError, KeyboardInterrupt):
        remove = command_text(("peagle", "weights", "remove", plan.prefix.uri))
        view.print_status("The same command copies what is missing. Remove what was copied", remove)
        raise


def _sync_facts(
    plan: sync.SyncPlan, price: StoragePrice | None, sandbox: bool
) -> Iterator[view.Fact]:
    for part, source in plan.sources.items():
        files = _files_text(len(source.files), source.size)
        yield part, f"{source.location}: {files} -> {part}/"
    yield "bucket", f"{plan.prefix.bucket} is created" if plan.creates_bucket else ""
    if plan.same_size:
        files = _files_text(len(plan.same_size), sum(item.size for item in plan.same_size))
        yield "present", f"{files}, with the same size: replaced where the checksum differs"
    yield "storage", _storage_text(plan.size, price, plan.region, sandbox)


def _files_text(count: int, size: float) -> str:
    return f"{count} files, {format_size(size)}"


def _storage_text(size: int, price: StoragePrice | None, region: str, sandbox: bool = False) -> str:
    if price is None:
        return f"the price of S3 Standard in {region} is unknown"
    usd = f"{format_usd(price.month_usd(size))} per month{' on AWS' if sandbox else ''}"
    rate = format_unit_price(price.usd_per_gb_month)
    return f"{usd}: S3 Standard in {region}, {rate} per GB-month (list price of {price.date})"


def _usd_per_month(size: int, price: StoragePrice | None) -> float | None:
    return round(price.month_usd(size), 4) if price else None


def use_command(
    pair: str, place: WeightsPrefix, manifest: Manifest, region: str, account: Account
) -> tuple[str, ...]:
    """The command that plans with these weights; only with ``--online`` does it connect to an
    account."""
    command = ["peagle", "plan", pair]
    if "target" in manifest:
        command += ["--model-source", place.part_uri("target")]
        if VOCABULARY_FILE in manifest["target"].files:
            folder = f"{MODEL_FOLDER}/target" if "drafter" in manifest else MODEL_FOLDER
            command += ["--env", f"{VOCABULARY_VARIABLE}={folder}"]
    if "drafter" in manifest:
        command += ["--drafter", place.part_uri("drafter")]
    if region != DEFAULT_REGION:
        command += ["--region", region]
    if account.sandbox or account.profile:
        command.append("--online")
    return in_context(command)


@command("peagle weights list s3://my-models/gpt-oss-20b", name="list", of=weights)
@click.argument("place", metavar="S3://BUCKET/PREFIX")
@region_option("the bucket")
@account_options
@click.pass_context
def list_command(ctx: click.Context, /, place: str, region: str, session: Session) -> None:
    """Show the weights at a prefix: every file with its state and checksum, and the warm starts.

    Exits with 3 if a copy is incomplete or the prefix cannot be mounted.
    """
    weights = inspect_weights(session.aws(region), weights_prefix(place))
    price = load_table(StorageTable, catalog_of(ctx)).price_in(region)
    document = _describe(weights, price)
    view.print_json(document)
    view.print_document({**document, "findings": None})
    view.print_findings(weights.findings, err=True)
    if not weights.mountable:
        ctx.exit(Refused.exit_code)


def _describe(weights: StoredWeights, price: StoragePrice | None) -> dict[str, Any]:
    return {
        "uri": weights.prefix.uri,
        "complete": weights.complete,
        "pairs": weights.pairs,
        "folders": {
            part: {"source": weights.manifest[part].source, "files": files}
            for part, files in weights.files.items()
        },
        "warm": weights.warm,
        "others": dict(weights.others),
        "finish": command_text(weights.finish) if weights.finish else None,
        "bytes": weights.size,
        "usd_per_month": _usd_per_month(weights.size, price),
        "findings": weights.findings,
    }


@command(
    "peagle weights remove s3://my-models/tiny",
    "peagle weights remove s3://my-models/tiny --warm KEY",
    name="remove",
    of=weights,
)
@click.argument("place", metavar="S3://BUCKET/PREFIX")
@region_option("the bucket")
@account_options
@option("--warm key KEY", "Only the warm start with that key.")
@_even_if_used
@yes_option
@click.pass_context
def remove_command(
    ctx: click.Context,
    place: str,
    region: str,
    session: Session,
    key: str | None,
    even_if_used: bool,
) -> None:
    """Remove the weights that `peagle weights sync` copied to a prefix, unfinished uploads and warm
    starts; with --warm one warm start and nothing else.

    Other objects stay. Refused while an endpoint deployed from this machine uses these weights.
    """
    aws = session.aws(region)
    weights = inspect_weights(aws, weights_prefix(place))
    uri = weights.prefix.uri
    if key:
        warm = weights.warm_start(key)
        view.print_document(warm)
        view.confirm(f"Remove this warm start from {uri}?", "not removed")
        for name in sorted(warm.objects):  # the manifest first: without it no engine uses one
            delete_objects(aws, weights.prefix.bucket, [name])
        document = {"uri": uri, "folders": [], "warm": [key], "bytes": warm.bytes}
        text = f"Removed the warm start {key} from {uri}. Engines that used it start cold."
        return view.print_result(document, lambda _: view.print_status(text))
    if not (weights.manifest or weights.warm):
        fix = Fix("show its contents", ("peagle", "weights", "list", uri))
        raise NotFound(f"no weights were synced to {uri}", fix, code="nothing-synced")
    if not even_if_used:
        refuse_weights_in_use({uri}, aws.scope, "without these weights no new instance can start")
    price = load_table(StorageTable, catalog_of(ctx)).price_in(region)
    view.print_document({**_describe(weights, price), "findings": None})
    view.confirm(f"Remove this from {uri}?", "not removed")
    remove_weights(aws, weights)
    keys = [warm.key for warm in weights.warm]
    size = weights.size - sum(weights.others.values())
    text = f"Removed the weights and {len(keys)} warm starts from {uri}; "
    text += f"{len(weights.others)} other objects stay."
    document = {"uri": uri, "folders": list(weights.files), "warm": keys, "bytes": size}
    return view.print_result(document, lambda _: view.print_status(text))


_USUAL_MINUTES = 15
"""An instance, the weights, a cold start of two or three minutes, the proof, and the removal."""


@command(
    "peagle warm gpt-oss-20b --model-source s3://my-models/gpt-oss-20b/target/ \\\n"
    "    --drafter s3://my-models/gpt-oss-20b/drafter/ --image URI",
    "peagle warm tiny --local",
    cls=ProjectCommand,
)
@plan_options
@account_options
@deploy_options
@option("--local local", "Run on this machine and store the caches here.", bool)
@option("--engine engine_kind", "Local: as a process or in a container.  [default: process]",
        ("process", "docker"), needs="--local")  # fmt: skip
@option("--gpus", "Local, Docker: use the GPU image and all GPUs.", bool,
        needs="--engine docker")  # fmt: skip
@option("--to folder FOLDER", "Local: folder for the warm start. [default: $PEAGLE_HOME/warm]",
        needs="--local")  # fmt: skip
def warm(
    plan: Plan,
    session: Session,
    role: str | None,
    accept_unknown_price: bool,
    local: bool,
    engine_kind: str | None,
    gpus: bool,
    folder: str | None,
) -> None:
    """Start PAIR once and keep its compile caches, so that later starts need not compile.

    On AWS: deploys a temporary endpoint NAME-warm, proves it, stores its compile and kernel caches
    next to the weights, and always removes it. The weights must be in S3 (`peagle weights sync`).
    Shows the price and asks first. `peagle deploy` with the same options then starts warm.
    Repeating the command replaces the stored caches.
    """
    if local:
        return _collect_locally(plan, engine_kind or "process", gpus, folder)
    return _collect_on_aws(plan, session, role, accept_unknown_price)


def _collect_locally(plan: Plan, engine_kind: str, gpus: bool, to: str | None) -> None:
    """Collect from an engine of this machine, which compiles also on a CPU."""
    folder = warm_folder() if to is None else Path(to).expanduser().absolute()
    folder.mkdir(parents=True, exist_ok=True)  # an error before the engine starts
    print_and_refuse(findings_on_this_machine(plan, engine_kind))
    image = local_image(plan, gpus) if engine_kind == "docker" else None
    with sigterm_as_interrupt(), view.StatusLine() as status:
        artifact = collect_locally(plan, folder, status.show, LocalRunner(image, gpus))
    folder.chmod(0o755)  # the container's own user reads it
    document = {"pair": plan.pair, "file": str(artifact.archive), **plain(artifact)}
    view.print_result(document)
    if to:  # an engine finds it by PEAGLE_WARM_FOLDER and PEAGLE_WARM_SHA256
        return None
    # The caches depend on the options.
    up = typed_command((*NOT_REPEATED, "--local"), ("local", "up"))
    return view.print_line("Restore it", command_line(up if gpus else [*up, "--compile"]))


def _collect_on_aws(
    plan: Plan, session: Session, role: str | None, accept_unknown_price: bool
) -> None:
    """Collect from a temporary endpoint, which is removed whatever happens."""
    if errors(plan.findings):
        print_and_refuse(plan.findings)
    place, collecting = find_weights_prefix(plan), collecting_plan(plan)
    if session.sandbox:
        check_sandbox_engine(compiles=True)
    if not is_own_image(plan, session.catalog.runtimes):
        build = ("peagle", "image", "build", *pair_arguments(plan))
        fix = Fix("build and push an image, then pass it as --image URI", (*build, "--push"))
        raise Refused("the stock image cannot export compile caches", fix, "image-cannot-collect")
    with session.changing(collecting.name, plan.region, creates=True) as change:
        with view.show_hashing():
            preflight = change.prepare(
                collecting, role, accept_unknown_price=accept_unknown_price,
                review=partial(show_and_refuse, session=session),
            )  # fmt: skip
        usd = preflight.desired.plan.price_per_hour_usd
        at_most = f"{limit_seconds(preflight.desired.revision) / 60:.0f} at most"
        takes = f"about {_USUAL_MINUTES} minutes on AWS, {at_most}"
        if usd is not None:
            takes += f", about {format_usd(usd * _USUAL_MINUTES / 60)}"
        stores = f"stores compile caches in {place.part_uri(WARM_FOLDER)}, removes the endpoint"
        view.print_facts((("then", stores), ("takes", takes)))
        check_writable(change.aws, place)
        view.confirm("Start the temporary endpoint?", "not started")

        def show_failure(error: BaseException) -> None:
            reason = f"{collecting.name}: {str(error) or 'interrupted'}"
            view.print_status(f"Removing {reason}. Ctrl-C leaves the endpoint running.")

        with sigterm_as_interrupt():
            stored = change.run(collect_on_aws, preflight, place, show_failure)
    _print_collected(preflight.desired.plan, stored, session)


def _print_collected(plan: Plan, stored: CollectedWarmStart, session: Session) -> None:
    document = {
        "pair": plan.pair,
        "uri": stored.uri,
        **plain(stored.artifact),
        "region": plan.region,
        "instance_type": plan.instance_type,
        "endpoint": plan.name,
        "endpoint_seconds": round(stored.seconds, 1),
        "stand_in": stored.stand_in,
        "others": [{"key": key, "bytes": size} for key, size in stored.others.items()],
    }
    view.print_result(document)
    if plan.price_per_hour_usd is not None and not session.sandbox:
        cost = format_usd(plan.price_per_hour_usd * stored.seconds / 3600)
        view.print_status(f"The endpoint is removed; it cost about {cost}.")
