"""The sources of a refresh: digests from ECR, images from the SageMaker SDK, numbers from EC2.

Only a data file of the SDK is read: importing the package takes seconds.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import botocore

from peagle.aws import ecr
from peagle.aws.client import Aws
from peagle.catalog.tables import Instance, InstanceTable, Runtime, RuntimeTable, image_uri
from peagle.errors import Fix, NotFound, UserError
from peagle.request_validation import service_model
from peagle.vllm.gpus import EC2_ARCHITECTURES
from peagle.vllm.versions import parse
from peagle_serve import json_reader

PACKAGE = "sagemaker-core"
INSTALL = ("pip", "install", "peagle-toolkit[sagemaker]")
DATA_FILE = "sagemaker/core/image_uri_config/vllm.json"
SOURCE = f"ec2.describe_instance_types, botocore {botocore.__version__}"

_CUDA = re.compile(r"\bcu(\d+)(\d)\b")
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_GPU_TYPE = re.compile(r"ml\.(?:g|p)\d")
_TOO_OLD = re.compile(r"ml\.p[23]\.")
"""K80 and V100, on which vLLM's images do not run."""

_BATCH = 100
_MIB_PER_GIB = 1024


def with_digests(table: RuntimeTable, aws: Aws) -> tuple[RuntimeTable, tuple[str, ...]]:
    """The table with the digests that ECR reports in the connection's region, and the versions
    without one, which stay unchanged."""
    runtimes, unknown = [], []
    for runtime in table.runtimes:
        try:
            digest = ecr.digest_by_address(aws, image_uri(table, runtime, aws.region))
        except NotFound:
            digest = None
        if digest is None:
            unknown.append(runtime.vllm)
        runtimes.append(runtime.model_copy(update={"digest": digest}) if digest else runtime)
    return table.model_copy(update={"runtimes": tuple(runtimes)}), tuple(unknown)


@dataclass(frozen=True)
class Images:
    """The SDK's table: images by vLLM version, accounts by region, and its source.

    ``unread`` are the versions whose entry cannot be used.
    """

    source: str
    accounts: Mapping[str, str]
    runtimes: Mapping[str, Runtime]
    unread: tuple[str, ...]


def sdk_images(table: RuntimeTable) -> Images:
    """The images of the installed SDK; ``table`` maps its CUDA versions to AMIs.

    Raises UserError if the SDK is not installed or has no readable table.
    """
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
    accounts = dict(table.accounts)
    for region, account in images.accounts.items():
        accounts = _inserted(accounts, region, account)
    return table.model_copy(update={"accounts": accounts, "runtimes": ordered})


def _inserted(accounts: dict[str, str], region: str, account: str) -> dict[str, str]:
    """The accounts with this one; a new region comes after the nearest smaller name."""
    if region in accounts:
        return {**accounts, region: account}
    names = list(accounts)
    smaller = [name for name in names if name < region]
    names.insert(names.index(max(smaller)) + 1 if smaller else 0, region)
    return {name: accounts.get(name, account) for name in names}


def _runtime(version: str, entry: Mapping[str, Any], table: RuntimeTable) -> Runtime | None:
    """``None`` for an entry without a CUDA version, or with one whose AMI is unknown."""
    container = str(entry["container_version"]["gpu"])
    found = _CUDA.search(container)
    cuda = f"{found[1]}.{found[2]}" if found else ""
    ami = _ami(cuda, table)
    if ami is None or not _VERSION.fullmatch(version):
        return None
    python = "-".join(entry["py_versions"][:1])
    parts = (str(entry["tag_prefix"]), "gpu", python, container)
    return Runtime(
        vllm=version,
        repository=str(entry["repository"]),
        tag="-".join(part for part in parts if part),
        cuda=cuda,
        ami=ami,
        regions=tuple(sorted(entry["registries"])),
    )


def _ami(cuda: str, table: RuntimeTable) -> str | None:
    """The AMI of the newest runtime on the same CUDA, else on the same major version of it."""
    newest = sorted(table.runtimes, key=lambda runtime: parse(runtime.vllm), reverse=True)
    for length in (len(cuda), cuda.find(".") + 1):
        for runtime in newest:
            if length > 0 and runtime.cuda[:length] == cuda[:length]:
                return runtime.ami
    return None


def endpoint_types() -> tuple[str, ...]:
    """The types with NVIDIA GPUs that botocore lists for endpoints, except too old ones."""
    types = service_model("sagemaker").shape_for("ProductionVariantInstanceType").enum
    return tuple(name for name in types if _GPU_TYPE.match(name) and not _TOO_OLD.match(name))


def describe_types(aws: Aws, types: Iterable[str]) -> dict[str, dict[str, Any]]:
    """EC2's description of these types (``ml.g5.xlarge``) in the connection's region, without types
    that it does not offer there. Raises CloudError."""
    names = [name.removeprefix("ml.") for name in types]
    found: dict[str, dict[str, Any]] = {}
    for start in range(0, len(names), _BATCH):
        filters = [{"Name": "instance-type", "Values": names[start : start + _BATCH]}]
        for entry in aws.items("ec2", "describe_instance_types", "InstanceTypes", Filters=filters):
            found[f"ml.{entry['InstanceType']}"] = entry
    return found


def with_types(
    table: InstanceTable, types: Iterable[str], numbers: Mapping[str, Mapping[str, Any]]
) -> tuple[InstanceTable, tuple[str, ...]]:
    """The table with new types and corrected numbers, and the new types without numbers.

    A new type comes after the last one of its family (``ml.g6e``), else at the end.
    """
    architectures = EC2_ARCHITECTURES | {one.gpu: one.gpu_architecture for one in table.instances}
    instances = [
        one.model_copy(update=_numbers(numbers.get(one.type, {}))) for one in table.instances
    ]
    known = {one.type for one in instances}
    unknown: list[str] = []
    for name in types:
        if name in known:
            continue
        entry = numbers.get(name, {})
        found = _numbers(entry)
        gpu = str(entry["GpuInfo"]["Gpus"][0].get("Name")) if found else ""
        if gpu not in architectures:
            unknown.append(name)
            continue
        new = Instance(type=name, gpu=gpu, gpu_architecture=architectures[gpu], **found)
        family = f"{name.rpartition('.')[0]}."
        last = max((at for at, one in enumerate(instances) if one.type.startswith(family)),
                   default=len(instances) - 1)  # fmt: skip
        instances.insert(last + 1, new)
    source = SOURCE if len(instances) > len(known) else table.source
    changed = {"instances": tuple(instances), "source": source}
    return table.model_copy(update=changed), tuple(unknown)


def _numbers(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Empty if a number is missing, or the GPUs are of several kinds."""
    gpus = (entry.get("GpuInfo") or {}).get("Gpus") or []
    if len(gpus) != 1 or gpus[0].get("Manufacturer") != "NVIDIA":
        return {}
    try:
        return {
            "gpu_count": int(gpus[0]["Count"]),
            "gpu_memory_mib": int(gpus[0]["MemoryInfo"]["SizeInMiB"]),
            "vcpus": int(entry["VCpuInfo"]["DefaultVCpus"]),
            "memory_gib": int(entry["MemoryInfo"]["SizeInMiB"]) // _MIB_PER_GIB,
            "nvme_gb": int((entry.get("InstanceStorageInfo") or {}).get("TotalSizeInGB") or 0),
        }
    except (KeyError, TypeError, ValueError):
        return {}
