"""What ``peagle weights`` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import click

from peagle.catalog.tables import StoragePrice
from peagle.cli.context import command_text, findings_in_context, in_context
from peagle.cli.view.console import (
    Fact,
    print_document,
    print_facts,
    print_line,
    print_next,
    print_status,
)
from peagle.cli.view.progress import StatusLine
from peagle.errors import PeagleError, Refused, command_line
from peagle.planning.runtime import DEFAULT_REGION
from peagle.session import Account
from peagle.text import (
    format_duration,
    format_rate,
    format_size,
    format_unit_price,
    format_usd,
)
from peagle.weights.inspect import StoredWarmStart, StoredWeights
from peagle.weights.layout import WeightsPrefix
from peagle.weights.manifest import Manifest
from peagle.weights.sync import SyncPlan, SyncProgress, SyncResult
from peagle_serve.contract import MODEL_FOLDER, VOCABULARY_FILE, VOCABULARY_VARIABLE


def show_sync_plan(pair: str, plan: SyncPlan, price: StoragePrice | None, sandbox: bool) -> None:
    """Print what a sync copies, the destination, and the storage price."""
    print_status(f"{click.style(pair, bold=True)} to {plan.prefix.uri} ({plan.region})")
    print_facts(_sync_facts(plan, price, sandbox), label=9)


def _sync_facts(plan: SyncPlan, price: StoragePrice | None, sandbox: bool) -> Iterator[Fact]:
    for part, source in plan.sources.items():
        files = _files(len(source.files), source.size)
        yield part, f"{source.location}: {files} -> {part}/"
    yield "bucket", f"{plan.prefix.bucket} is created" if plan.creates_bucket else ""
    if plan.same_size:
        files = _files(len(plan.same_size), sum(item.size for item in plan.same_size))
        yield (
            "present",
            f"{files}, with the same size: compared by checksum, and replaced where they differ",
        )
    for part, source in plan.sources.items():
        skipped = f"{_files(*source.left_out)}, of the {part}, which vLLM does not read"
        yield "skipped", skipped if source.left_out[0] else ""
    yield "storage", month_text(plan.size, price, plan.region, sandbox)


def _files(count: int, size: float) -> str:
    return f"{count} file{'' if count == 1 else 's'}, {format_size(size)}"


def month_text(size: int, price: StoragePrice | None, region: str, sandbox: bool = False) -> str:
    """The storage price per month, and its basis."""
    if price is None:
        return f"the price of S3 Standard in {region} is unknown"
    free = " on AWS (free in the sandbox)" if sandbox else ""
    usd = price.month_usd(size)
    amount = format_usd(usd) if usd >= 0.01 else "less than $0.01"
    return (
        f"{amount} per month{free}: S3 Standard in {region}, "
        f"{format_unit_price(price.usd_per_gb_month)} per GB-month (list price of {price.date})"
    )


def progress_text(progress: SyncProgress) -> str:
    """One line of progress."""
    unit, name = (1e9, "GB") if progress.total >= 1e9 else (1e6, "MB")
    parts = ["Copying", f"{progress.done / unit:.2f} of {progress.total / unit:.2f} {name}"]
    if progress.seconds_left is not None:
        parts.append(format_rate(progress.speed))
        parts.append(f"{format_duration(progress.seconds_left)} left")
    return " | ".join(parts)


class SyncProgressBar(StatusLine):
    """Progress of a sync on stderr, as a context: one line on a terminal, else one every 15 s."""

    started = False
    progress: SyncProgress | None = None

    def __enter__(self) -> Self:
        self.started = True
        return self

    def __exit__(self, *raised: object) -> None:
        if raised[0] is None and self.progress is not None:
            self.show_line(progress_text(self.progress), at_once=True)
        super().__exit__()

    def update(self, progress: SyncProgress) -> None:
        """Show the current state."""
        self.progress = progress
        self.show_line(progress_text(progress))


@contextmanager
def resume_hint(
    bar: SyncProgressBar, place: WeightsPrefix, resume: Sequence[str], remove: Sequence[str]
) -> Iterator[None]:
    """Around a sync: after an interrupt, or an error once copying has started, show what is in S3
    and the commands that resume the copy and remove it."""
    try:
        yield
    except (PeagleError, KeyboardInterrupt) as error:
        failed = bar.started and not isinstance(error, Refused)
        if failed or isinstance(error, KeyboardInterrupt):
            if bar.progress is None:
                print_status(
                    f"This run copied no file to {place.uri}. Resume", command_line(resume)
                )
            else:
                done, total = format_size(bar.progress.done), format_size(bar.progress.total)
                print_status(
                    f"At {place.uri}: {done} of {total}. Finished files are kept, and billed as "
                    "storage."
                )
                print_status("Resume", command_line(resume))
                print_status("Remove", command_line(remove))
        raise


def say_synced(plan: SyncPlan, result: SyncResult, seconds: float, use: str) -> None:
    """Say that the copy is complete, and the command that uses it."""
    if result.moved:
        rate = format_rate(result.moved / seconds if seconds else 0)
        copied = f"{format_size(result.moved)} copied in {format_duration(seconds)}, {rate}"
    else:
        copied = "nothing was copied"
    files = _files(len(plan.files), plan.size)
    print_status(f"{plan.prefix.uri} is complete: {files}, checksums match ({copied})")
    print_status("Use it", use)


def use_command(
    pair: str, place: WeightsPrefix, manifest: Manifest, region: str, account: Account
) -> tuple[str, ...]:
    """The command that plans with these weights. For another account than the default one ``plan``
    must connect, which it does with ``--online`` only."""
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


def sync_document(pair: str, plan: SyncPlan, result: SyncResult, seconds: float,
                  price: StoragePrice | None, use: str) -> dict[str, Any]:  # fmt: skip
    """What ``sync --json`` prints."""
    return {
        "pair": pair,
        "uri": plan.prefix.uri,
        "region": plan.region,
        "bytes": plan.size,
        "bytes_moved": result.moved,
        "seconds": round(seconds, 3),
        "usd_per_month": _month(plan.size, price),
        "folders": {
            part: {
                "uri": plan.prefix.part_uri(part),
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


def print_weights(weights: StoredWeights, price: StoragePrice | None) -> None:
    """The files, warm starts and other objects at a prefix, on stdout."""
    state = "complete" if weights.complete else "not synced" if weights.mountable else "incomplete"
    print_line(f"{weights.prefix.uri}: {state}, {format_size(weights.size)}", bold=True)
    if weights.finish:
        print_next("complete it", command_text(weights.finish))
    document = inspect_document(weights, price)
    print_document({key: document[key] for key in ("pairs", "folders", "warm", "others")})
    if weights.lock is not None:
        print_line(f"{'stale lock' if weights.lock.stale else 'locked'}: {weights.lock}")
    if price is not None:
        print_line(f"storage: {month_text(weights.size, price, price.region)}")


def inspect_document(weights: StoredWeights, price: StoragePrice | None) -> dict[str, Any]:
    """What ``list --json`` prints; ``None`` is unknown, and ``k`` is 0 without speculation."""
    return {
        "uri": weights.prefix.uri,
        "complete": weights.complete,
        "pairs": list(weights.pairs),
        "finish": command_text(weights.finish) if weights.finish else None,
        "bytes": weights.size,
        "usd_per_month": _month(weights.size, price),
        "folders": {
            part: {
                "source": weights.manifest[part].source,
                "files": [
                    {"name": file.name, "state": file.state, "bytes": file.size,
                     "bytes_there": file.present, "checksum": file.checksum or None}
                    for file in files
                ],
            }
            for part, files in weights.files.items()
        },
        "warm": [warm_start_document(warm) for warm in weights.warm],
        "at_work": str(weights.lock) if weights.lock and not weights.lock.stale else None,
        "others": dict(weights.others),
        "findings": findings_in_context(weights.findings),
    }  # fmt: skip


def warm_start_document(warm: StoredWarmStart) -> dict[str, Any]:
    """A warm start at a prefix; ``None`` is unknown."""
    return {
        "key": warm.key,
        "complete": warm.complete,
        "bytes": warm.size,
        "pair": warm.pair or None,
        "k": warm.k,
        "device": warm.device or None,
        "made": warm.made or None,
        "seconds_cold": warm.seconds_cold,
    }


def _month(size: int, price: StoragePrice | None) -> float | None:
    return round(price.month_usd(size), 4) if price else None
