"""What ``peagle weights`` shows and prints."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import click

from peagle.catalog.tables import StoragePrice
from peagle.cli.account import DEFAULT_REGION, Account
from peagle.cli.output.columns import WIDE, room
from peagle.cli.output.console import say
from peagle.findings import Finding, warning
from peagle.text import dollars, in_words, rate
from peagle.weights import Moment, Outcome, Place, Survey
from peagle.weights.inspect import Look
from peagle.weights.manifest import Manifest
from peagle.weights.mounted import WEIGHTS_CODES
from peagle.weights.sources import Origin
from peagle.weights.warm_starts import StoredWarmStart


def in_account(finding: Finding, account: Account) -> Finding:
    """A finding about weights in S3, with the command that it ends with as it works there."""
    if finding.code not in WEIGHTS_CODES:
        return finding
    return finding.model_copy(update={"fix": fix_in_account(finding.fix, account)})


def fix_in_account(fix: str, account: Account) -> str:
    """What to do, with the command that it ends with as it works in that account. The AWS CLI has
    no ``--sandbox``: it finds the sandbox by its environment."""
    if "peagle weights " in fix and "`" not in fix:
        return fix + account.option
    if "aws s3" in fix and account.option:
        led = " (after `peagle sandbox env`, else it goes to AWS)"
        return fix + (led if account.sandbox else account.option)
    return fix


def show_survey(pair: str, found: Survey, price: StoragePrice | None, sandbox: bool,
                half: int = 0) -> None:  # fmt: skip
    """What would be copied, where to, and what keeping it costs; ``half``: bytes in parts of files
    that are not whole yet."""
    say(f"{click.style(pair, bold=True)} to {found.place.uri} ({found.region})")
    for part, origin in found.origins.items():
        say(f"  {part:8} {_origin(origin)} -> {part}/")
    if found.makes_bucket:
        say(f"  bucket   {found.place.bucket} is created")
    if found.present:
        size = size_words(sum(item.file.size for item in found.present))
        say(f"  there    {_files(len(found.present))}, {size}, of the same size: compared by "
            "checksum, and written anew where they differ")  # fmt: skip
    if half:
        say(
            f"  half     {size_words(half)} more in parts of files that are not whole: gone on with"
        )
    for part, origin in found.origins.items():
        count, left = origin.left_out
        if count:
            say(f"  left out {_files(count)}, {size_words(left)}, of the {part}'s, which vLLM does "
                "not read")  # fmt: skip
    say(f"  storage  {month_words(found.size, price, found.region, sandbox)}")


def other_origins(found: Survey) -> Iterator[Finding]:
    """That other weights were copied there, and which."""
    for part, origin in found.origins.items():
        folder = found.manifest.get(part)
        if folder is not None and folder.source != origin.location:
            of = f"of {folder.pair}, " if folder.pair else ""
            yield warning(
                "other-weights-there", found.place.folder(part),
                f"the {part} {of}from {folder.source}, lies there, and is replaced",
                "name another prefix to keep both; an endpoint that reads this one would then "
                "start with other weights",
            )  # fmt: skip


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
    words = dollars(usd) if usd >= 0.01 else "less than $0.01"
    return (
        f"{words} per month{free}: S3 Standard in {region}, "
        f"{rate(price.usd_per_gb_month)} per GB-month (list price of {price.date})"
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


def use_command(pair: str, place: Place, manifest: Manifest, region: str, account: Account) -> str:
    """The command that plans with what lies there now. Where it lies in another account than the
    usual one, that is asked, and ``plan`` asks nobody without ``--online``."""
    words = ["peagle", "plan", pair]
    if "target" in manifest:
        words += ["--model-source", place.folder("target")]
    if "drafter" in manifest:
        words += ["--drafter", place.folder("drafter")]
    if region != DEFAULT_REGION:
        words += ["--region", region]
    return shlex.join(words) + (f" --online{account.option}" if account.option else "")


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


def show_look(found: Look, price: StoragePrice | None, option: str = "") -> None:
    """What lies there, on stdout; ``option`` is what commands need to work in that account."""
    state = "whole" if found.complete else "not synced" if found.mountable else "not whole"
    pairs = f", {' and '.join(found.pairs)}" if found.pairs else ""
    click.echo(f"{found.place.uri}: {state}, {size_words(found.size)}{pairs}")
    if found.finish:
        click.echo(f"finish it: {found.finish}{option}")
    for part, files in found.files.items():
        click.echo(f"{part}/ from {found.manifest[part].source}")
        for file in files:
            half = f" ({size_words(file.there)} are there)" if file.state == "half" else ""
            click.echo(file_line(file.state, file.size, file.name, half, file.checksum, room(WIDE)))
    if found.warm:
        click.echo("warm/: what engines compiled")
    for warm in found.warm:
        click.echo(f"  {warm_words(warm)}")
    if found.lock is not None:
        state = "left behind" if found.lock.stale else "at work"
        click.echo(f"{state}: {found.lock.words}")
    if found.others:
        click.echo("others, which `peagle weights sync` did not bring")
    for key, size in found.others.items():
        click.echo(f"            {size:>15,}  {key.removeprefix(found.place.prefix)}")
    if price is not None:
        click.echo(f"storage: {month_words(found.size, price, price.region)}")


def file_line(state: str, size: int, name: str, half: str, checksum: str, width: int) -> str:
    """A file of a synced folder; its checksum in a second line where one is too narrow."""
    line = f"  {state:9} {size:>15,}  {name}{half}"
    if len(line) + 2 + len(checksum) <= width:
        return f"{line}  {checksum}"
    return f"{line}\n{' ' * 12}{checksum}" if checksum else line


def warm_words(warm: StoredWarmStart) -> str:
    """A warm start in one line: whether it is whole, size and key; for what it is, when it was
    made, and how long the engine took without it."""
    drafts = "" if warm.k is None else f"K={warm.k}" if warm.k else "no speculation"
    cold = f"{warm.seconds_cold:.0f} s cold" if warm.seconds_cold else ""
    facts = filter(None, (warm.pair, drafts, warm.device, warm.made, cold))
    state = "whole" if warm.whole else "half"
    return f"{state:9} {warm.size:>15,}  {warm.key}  {', '.join(facts)}".rstrip()


def warm_document(warm: StoredWarmStart) -> dict[str, Any]:
    """What ``--json`` prints of it; ``None`` is what is not known, and ``k`` is 0 without
    speculation."""
    return {
        "key": warm.key,
        "complete": warm.whole,
        "bytes": warm.size,
        "pair": warm.pair or None,
        "k": warm.k,
        "device": warm.device or None,
        "made": warm.made or None,
        "seconds_cold": warm.seconds_cold,
    }


def look_document(found: Look, price: StoragePrice | None, option: str = "") -> dict[str, Any]:
    """What ``list --json`` prints."""
    return {
        "uri": found.place.uri,
        "complete": found.complete,
        "pairs": list(found.pairs),
        "finish": found.finish + option if found.finish else None,
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
        "warm": [warm_document(one) for one in found.warm],
        "at_work": found.lock.words if found.lock and not found.lock.stale else None,
        "others": dict(found.others),
        "findings": [finding.model_dump() for finding in found.findings],
    }  # fmt: skip


def _month(size: int, price: StoragePrice | None) -> float | None:
    return round(price.month_usd(size), 4) if price else None
