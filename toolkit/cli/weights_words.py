"""What ``peagle weights`` shows and prints."""

from __future__ import annotations

from typing import Any

import click

from toolkit.aws.weights import Moment, Outcome, Place, Survey
from toolkit.aws.weights.looking import Look
from toolkit.aws.weights.mounted import WEIGHTS_CODES
from toolkit.aws.weights.origins import Origin
from toolkit.catalog.storage import StoragePrice
from toolkit.cli.cloud import Account
from toolkit.cli.console import say
from toolkit.cli.durations import in_words
from toolkit.findings import Finding


def in_account(finding: Finding, account: Account) -> Finding:
    """A finding about weights in S3, with the command that it ends with as it works there."""
    command = "peagle weights " in finding.fix and "`" not in finding.fix
    if finding.code not in WEIGHTS_CODES or not command:
        return finding
    return finding.model_copy(update={"fix": finding.fix + account.option})


def show_survey(pair: str, found: Survey, price: StoragePrice | None, sandbox: bool) -> None:
    """What would be copied, where to, and what keeping it costs."""
    say(f"{click.style(pair, bold=True)} to {found.place.uri} ({found.region})")
    for part, origin in found.origins.items():
        say(f"  {part:8} {_origin(origin)} -> {part}/")
    if found.makes_bucket:
        say(f"  bucket   {found.place.bucket} is created")
    if found.present:
        size = size_words(sum(item.file.size for item in found.present))
        say(f"  there    {_files(len(found.present))}, {size}, of the same size: compared by "
            "checksum, and written anew where they differ")  # fmt: skip
    for part, origin in found.origins.items():
        count, left = origin.left_out
        if count:
            say(f"  left out {_files(count)}, {size_words(left)}, of the {part}'s, which vLLM does "
                "not read")  # fmt: skip
    say(f"  storage  {month_words(found.size, price, found.region, sandbox)}")


def _origin(origin: Origin) -> str:
    return f"{origin.location}: {_files(len(origin.files))}, {size_words(origin.size)}"


def _files(count: int) -> str:
    return f"{count} file" if count == 1 else f"{count} files"


def size_words(size: float) -> str:
    """``13.8 GB``, ``0.4 MB``."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"


def month_words(size: int, price: StoragePrice | None, region: str, sandbox: bool = False) -> str:
    """The price of a month, with what it is reckoned from."""
    if price is None:
        return f"the price of S3 Standard in {region} is not known here"
    free = " on AWS (nothing in the sandbox)" if sandbox else ""
    usd = price.month_usd(size)
    words = f"${usd:,.2f}" if usd >= 0.01 else "less than $0.01"
    return (
        f"{words} per month{free}: S3 Standard in {region}, "
        f"${price.usd_per_gb_month:g} per GB-month (list price of {price.date})"
    )


def describe(moment: Moment) -> str:
    """One line of progress."""
    unit, name = (1e9, "GB") if moment.total >= 1e9 else (1e6, "MB")
    parts = ["Copying", f"{moment.done / unit:.2f} of {moment.total / unit:.2f} {name}"]
    if moment.seconds_left is not None:
        parts.append(f"{moment.speed / 1e6:.0f} MB/s")
        parts.append(f"{in_words(moment.seconds_left)} left")
    if moment.file:
        parts.append(moment.file)
    return " | ".join(parts)


def say_left(place: Place, last: Moment | None, go_on: str, back: str) -> None:
    """What an interrupted copy leaves, and the commands to go on or to be rid of it."""
    if last is None:
        say(f"Nothing was copied to {place.uri} by this run.")
        return
    say(f"Left at {place.uri}: {size_words(last.done)} of {size_words(last.total)}. Parts that are "
        "there are kept, and cost as storage does.")  # fmt: skip
    say(f"Go on: {go_on}")
    say(f"Remove it: {back}")


def say_done(found: Survey, outcome: Outcome, seconds: float, use: str) -> None:
    """That all is there, and the command that uses it."""
    if outcome.moved:
        speed = outcome.moved / seconds / 1e6 if seconds else 0
        copied = f"{size_words(outcome.moved)} copied in {in_words(seconds)}, {speed:.0f} MB/s"
    else:
        copied = "nothing was copied"
    say(f"{found.place.uri} is whole: {_files(len(found.items))}, {size_words(found.size)}, every "
        f"checksum agrees ({copied})")  # fmt: skip
    say(f"Use it: {use}")


def sync_document(pair: str, found: Survey, outcome: Outcome, seconds: float,
                  price: StoragePrice | None, use: str) -> dict[str, Any]:  # fmt: skip
    """What ``sync --json`` prints."""
    return {
        "pair": pair,
        "uri": found.place.uri,
        "region": found.region,
        "bytes": found.size,
        "bytes_moved": outcome.moved,
        "seconds": round(seconds, 3),
        "usd_per_month": _month(found.size, price),
        "folders": {
            part: {
                "uri": found.place.folder(part),
                "source": folder.source,
                "files": {
                    name: {"bytes": entry.size, "checksum": entry.checksum}
                    for name, entry in folder.files.items()
                },
            }
            for part, folder in outcome.manifest.items()
        },
        "next": use,
    }


def show_look(found: Look, price: StoragePrice | None) -> None:
    """What lies there, on stdout."""
    state = "whole" if found.complete else "not whole"
    click.echo(f"{found.place.uri}: {state}, {size_words(found.size)}")
    for part, files in found.files.items():
        click.echo(f"{part}/ from {found.manifest[part].source}")
        for file in files:
            half = f" ({size_words(file.there)} are there)" if file.state == "half" else ""
            click.echo(f"  {file.state:9} {file.size:>15,}  {file.name}{half}  {file.checksum}")
    if found.warm:
        click.echo("warm/: what engines compiled")
    for warm in found.warm:
        state = "whole" if warm.whole else "half"
        click.echo(f"  {state:9} {warm.size:>15,}  {warm.key}  {warm.device}")
    if found.lock is not None:
        state = "left behind" if found.lock.stale else "at work"
        click.echo(f"{state}: {found.lock.words}")
    if found.others:
        click.echo("others, which `peagle weights sync` did not bring")
    for key, size in found.others.items():
        click.echo(f"            {size:>15,}  {key.removeprefix(found.place.prefix)}")
    if price is not None:
        click.echo(f"storage: {month_words(found.size, price, price.region)}")


def look_document(found: Look, price: StoragePrice | None) -> dict[str, Any]:
    """What ``list --json`` prints."""
    return {
        "uri": found.place.uri,
        "complete": found.complete,
        "bytes": found.size,
        "usd_per_month": _month(found.size, price),
        "folders": {
            part: {
                "source": found.manifest[part].source,
                "files": [
                    {"name": f.name, "state": f.state, "bytes": f.size, "bytes_there": f.there,
                     "checksum": f.checksum or None}
                    for f in files
                ],
            }
            for part, files in found.files.items()
        },
        "warm": [
            {"key": w.key, "complete": w.whole, "bytes": w.size, "device": w.device or None}
            for w in found.warm
        ],
        "at_work": found.lock.words if found.lock and not found.lock.stale else None,
        "others": dict(found.others),
        "findings": [finding.model_dump() for finding in found.findings],
    }  # fmt: skip


def _month(size: int, price: StoragePrice | None) -> float | None:
    return round(price.month_usd(size), 4) if price else None
