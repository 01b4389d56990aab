"""New snapshots of the catalogue's tables from AWS, and their differences from the old ones.

Images are those in sagemaker-core's table, a data file: importing the package takes seconds.
Digests come from ECR, and prices from the Pricing API. Nothing is written here.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from peagle.aws import ecr
from peagle.aws.client import Connect
from peagle.aws.prices import hosting_prices, with_prices
from peagle.catalog.tables import Runtime, RuntimeTable, image_uri
from peagle.catalog.writing import Tables
from peagle.errors import Fix, NotFound, PeagleError, UserError
from peagle.findings import Finding, note, warning
from peagle.text import format_unit_price
from peagle.vllm.versions import parse
from peagle_serve import json_reader

Part = Literal["images", "digests", "prices"]

Result = tuple[Tables, list[Finding]]

PACKAGE = "sagemaker-core"
INSTALL = ("pip", "install", "peagle-toolkit[sagemaker]")
DATA_FILE = "sagemaker/core/image_uri_config/vllm.json"
_CUDA = re.compile(r"\bcu(\d+)(\d)\b")
_VERSION = re.compile(r"\d+\.\d+\.\d+")


@dataclass(frozen=True)
class Change:
    """A changed value and the old one (``None`` for a new entry). ``confirmed``: AWS reports the
    same value as the table, and only the date is new."""

    file: str
    entry: str
    key: str
    before: str | None
    after: str
    confirmed: bool = False


@dataclass(frozen=True)
class Refreshed:
    """The new tables, findings about them, and the error of each part that failed."""

    tables: Tables
    findings: tuple[Finding, ...]
    failed: Mapping[Part, PeagleError]


def refresh_tables(
    before: Tables, parts: Collection[Part], regions: Sequence[str], connect: Connect
) -> Refreshed:
    """Both tables as AWS reports them today. A part that fails leaves its values unchanged."""
    tables = before
    findings: list[Finding] = []
    failed: dict[Part, PeagleError] = {}
    for name, refresh in PARTS.items():
        if name in parts:
            try:
                tables, part_findings = refresh(tables, regions, connect)
                findings += part_findings
            except PeagleError as error:
                failed[name] = error
    today = {"checked": datetime.now(UTC).date()}
    if tables.runtimes != before.runtimes:
        tables = replace(tables, runtimes=tables.runtimes.model_copy(update=today))
    if tables.instances != before.instances:
        tables = replace(tables, instances=tables.instances.model_copy(update=today))
    for name, failure in failed.items():
        fix = Fix(failure.fix or "run the command again later", tuple(failure.command))
        findings.append(warning("not-refreshed", name, f"not refreshed: {failure.message}", fix))
    return Refreshed(tables, tuple(findings), failed)


def _images(tables: Tables, _regions: Sequence[str], _connect: Connect) -> Result:
    images = sdk_images(tables.runtimes)
    new = with_images(tables.runtimes, images)
    if new != tables.runtimes:
        new = new.model_copy(update={"source": images.source})
    message = f"{', '.join(images.unread)}: the SDK's entry has no CUDA version of a known AMI"
    unread = note("images-unread", "runtimes", message, "add it by hand")
    return replace(tables, runtimes=new), [unread] if images.unread else []


def _digests(tables: Tables, regions: Sequence[str], connect: Connect) -> Result:
    """The digests that ECR reports in the first region; a version without one stays unchanged."""
    aws, table = connect(regions[0]), tables.runtimes
    runtimes, unknown = [], []
    for runtime in table.runtimes:
        digest = None
        with suppress(NotFound):
            digest = ecr.digest_by_address(aws, image_uri(table, runtime, aws.region))
        if digest is None:
            unknown.append(runtime.vllm)
        runtimes.append(runtime.model_copy(update={"digest": digest}) if digest else runtime)
    message = f"ECR in {regions[0]} reports no digest of vLLM {', '.join(unknown)}"
    fix = "plans name the tag then, which AWS can move; try another --region"
    missing = note("digests-unknown", "runtimes", message, fix)
    new = table.model_copy(update={"runtimes": tuple(runtimes)})
    return replace(tables, runtimes=new), [missing] if unknown else []


def _prices(tables: Tables, regions: Sequence[str], connect: Connect) -> Result:
    table, findings = tables.instances, []
    for region in regions:
        listed = hosting_prices(connect(region))
        if not listed:
            message = f"AWS lists no prices for hosting in {region}"
            fix = "the region may have no GPU instances, or no SageMaker"
            findings.append(warning("prices-missing", "prices", message, fix))
        table = with_prices(table, listed)
    return replace(tables, instances=table), findings


@dataclass(frozen=True)
class Images:
    """The SDK's table: images by vLLM version, accounts by region, its source, and the versions
    ``unread`` whose entry cannot be used."""

    source: str
    accounts: Mapping[str, str]
    runtimes: Mapping[str, Runtime]
    unread: tuple[str, ...]


def sdk_images(table: RuntimeTable) -> Images:
    """The images of the installed SDK; ``table`` maps its CUDA versions to AMIs. Raises
    UserError."""
    try:
        package = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        message = f"the table of images comes with {PACKAGE}, which is not installed"
        raise UserError(message, Fix("install it", INSTALL), "sdk-missing") from None
    accounts: dict[str, str] = {}
    runtimes: dict[str, Runtime] = {}
    unread: list[str] = []
    try:
        images = json_reader.read_file(Path(str(package.locate_file(DATA_FILE))))
        for version, entry in images["inference"]["versions"].items():
            if runtime := _runtime(version, entry, table):
                runtimes[version] = runtime
                registries = entry["registries"].items()
                accounts |= {str(region): str(account) for region, account in registries}
            else:
                unread.append(version)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{PACKAGE} {package.version} has no readable table of vLLM images: {error!r}",
            Fix("install another version", INSTALL),
            "sdk-unreadable",
        ) from error
    source = f"{PACKAGE} {package.version}, image_uri_config/vllm.json"
    return Images(source, dict(sorted(accounts.items())), runtimes, tuple(unread))


def with_images(table: RuntimeTable, images: Images) -> RuntimeTable:
    """The table with the SDK's images; versions that the SDK does not have stay unchanged."""
    kept = {runtime.vllm: runtime for runtime in table.runtimes}
    for version, new in images.runtimes.items():
        old = kept.get(version)
        is_same = old and (old.repository, old.tag) == (new.repository, new.tag)
        kept[version] = new if old is None else old.model_copy(
            update={
                "repository": new.repository,
                "tag": new.tag,
                "digest": old.digest if is_same else None,
                "cuda": new.cuda,
                "regions": old.regions if set(old.regions) == set(new.regions) else new.regions,
            }
        )  # fmt: skip
    ordered = tuple(kept[version] for version in sorted(kept, key=parse))
    accounts = dict(sorted({**table.accounts, **images.accounts}.items()))
    return table.model_copy(update={"accounts": accounts, "runtimes": ordered})


def _runtime(version: str, entry: Mapping[str, Any], table: RuntimeTable) -> Runtime | None:
    """``None`` for an entry without a CUDA version, or with one whose AMI is unknown: that of the
    newest runtime on the same CUDA, else on the same major version of it."""
    container = str(entry["container_version"]["gpu"])
    match = _CUDA.search(container)
    if match is None or not _VERSION.fullmatch(version):
        return None
    cuda = f"{match[1]}.{match[2]}"
    newest = sorted(table.runtimes, key=lambda runtime: parse(runtime.vllm), reverse=True)
    amis = [runtime.ami for runtime in newest if runtime.cuda == cuda]
    amis += [runtime.ami for runtime in newest if runtime.cuda.startswith(f"{match[1]}.")]
    if not amis:
        return None
    python = "-".join(entry["py_versions"][:1])
    parts = (str(entry["tag_prefix"]), "gpu", python, container)
    return Runtime(
        vllm=version,
        repository=str(entry["repository"]),
        tag="-".join(part for part in parts if part),
        cuda=cuda,
        ami=amis[0],
        regions=tuple(sorted(entry["registries"])),
    )


PARTS: dict[Part, Callable[[Tables, Sequence[str], Connect], Result]] = {
    "images": _images,
    "digests": _digests,
    "prices": _prices,
}
"""In the order in which they run: a new image gets its digest."""


def table_changes(before: Tables, after: Tables) -> Iterator[Change]:
    """All differences, in the order of the files."""
    earlier = _values(before)
    for (file, entry, key), (value, text) in _values(after).items():
        old_value, old_text = earlier.get((file, entry, key), (None, None))
        if old_text != text:
            yield Change(file, entry, key, old_text, text, confirmed=old_value == value)


def _values(tables: Tables) -> dict[tuple[str, str, str], tuple[object, str]]:
    """File, entry and key -> value, and what is shown of it."""
    file = "runtimes.yaml"
    values: dict[tuple[str, str, str], tuple[object, str]] = {
        (file, "accounts", region): (account, account)
        for region, account in tables.runtimes.accounts.items()
    }
    for runtime in tables.runtimes.runtimes:
        texts = {
            key: getattr(runtime, key) for key in ("repository", "tag", "digest", "cuda", "ami")
        }
        texts["regions"] = ", ".join(runtime.regions)
        for key, text in texts.items():
            if text:
                values[file, f"vLLM {runtime.vllm}", key] = (text, text)
    for instance in tables.instances.instances:
        for price in instance.prices:
            text = f"{format_unit_price(price.usd_per_hour)} ({price.date.isoformat()})"
            key = f"price in {price.region}"
            values["instances.yaml", instance.type, key] = (price.usd_per_hour, text)
    return values
