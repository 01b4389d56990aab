"""Instance types from botocore's list, with the numbers that EC2 knows of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import botocore

from toolkit.aws.session import Aws
from toolkit.aws.validity_model import service_model
from toolkit.catalog.tables import Instance, InstanceTable

SOURCE = f"ec2.describe_instance_types, botocore {botocore.__version__}"

_GPU_TYPE = re.compile(r"ml\.(?:g|p)\d")
_AT_ONCE = 100
_MIB_IN_GIB = 1024

_ARCHITECTURES = {
    "T4": "sm_75", "T4g": "sm_75", "A100": "sm_80", "A10G": "sm_86", "L4": "sm_89", "L40S": "sm_89",
    "H100": "sm_90", "H200": "sm_90", "B200": "sm_100", "B300": "sm_103",
    "RTX PRO 4500": "sm_120", "RTX PRO Server 6000": "sm_120",
}  # fmt: skip
"""GPU as EC2 names it -> NVIDIA's compute capability, which EC2 does not tell. The table's own
instances say it too."""

_TOO_OLD = re.compile(r"ml\.p[23]\.")
"""K80 and V100: vLLM's images do not run there, so they are left out on purpose."""


def endpoint_types() -> tuple[str, ...]:
    """The types with NVIDIA GPUs that botocore lists for endpoints, but those that are too old."""
    types = service_model("sagemaker").shape_for("ProductionVariantInstanceType").enum
    return tuple(name for name in types if _GPU_TYPE.match(name) and not _TOO_OLD.match(name))


def numbers_of(aws: Aws, types: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What EC2 says in the connection's region of those types (``ml.g5.xlarge``); a type that it
    does not offer there is left out. Raises CloudError."""
    names = [name.removeprefix("ml.") for name in types]
    found: dict[str, dict[str, Any]] = {}
    for start in range(0, len(names), _AT_ONCE):
        filters = [{"Name": "instance-type", "Values": names[start : start + _AT_ONCE]}]
        for entry in aws.items("ec2", "describe_instance_types", "InstanceTypes", Filters=filters):
            found[f"ml.{entry['InstanceType']}"] = entry
    return found


def with_types(
    table: InstanceTable, types: Iterable[str], told: Mapping[str, Mapping[str, Any]]
) -> tuple[InstanceTable, tuple[str, ...]]:
    """The table with new types and corrected numbers, and the new types nobody has numbers of."""
    known = {instance.type: instance for instance in table.instances}
    architectures = {one.gpu: one.gpu_architecture for one in table.instances}
    instances = {
        name: _corrected(old, told[name]) if name in told else old for name, old in known.items()
    }
    unknown: list[str] = []
    for name in types:
        if name not in known:
            new = _new(name, told.get(name), architectures)
            if new is None:
                unknown.append(name)
            else:
                instances[name] = new
    source = SOURCE if len(instances) > len(known) else table.source
    changed = {"instances": tuple(instances.values()), "source": source}
    return table.model_copy(update=changed), tuple(unknown)


def _corrected(old: Instance, entry: Mapping[str, Any]) -> Instance:
    numbers = _numbers(entry)
    return old.model_copy(update=numbers) if numbers else old


def _new(
    name: str, entry: Mapping[str, Any] | None, architectures: Mapping[str, str]
) -> Instance | None:
    numbers = _numbers(entry) if entry else None
    if entry is None or numbers is None:
        return None
    gpu = str(entry["GpuInfo"]["Gpus"][0].get("Name"))
    architecture = architectures.get(gpu) or _ARCHITECTURES.get(gpu)
    if architecture is None:
        return None
    named: dict[str, Any] = {"type": name, "gpu": gpu, "gpu_architecture": architecture}
    return Instance(**named, **numbers)


def _numbers(entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """``None`` when EC2 does not tell all of it, or the GPUs differ from each other."""
    gpus = (entry.get("GpuInfo") or {}).get("Gpus") or []
    if len(gpus) != 1 or gpus[0].get("Manufacturer") != "NVIDIA":
        return None
    try:
        return {
            "gpu_count": int(gpus[0]["Count"]),
            "gpu_memory_mib": int(gpus[0]["MemoryInfo"]["SizeInMiB"]),
            "vcpus": int(entry["VCpuInfo"]["DefaultVCpus"]),
            "memory_gib": int(entry["MemoryInfo"]["SizeInMiB"]) // _MIB_IN_GIB,
            "nvme_gb": int((entry.get("InstanceStorageInfo") or {}).get("TotalSizeInGB") or 0),
        }
    except (KeyError, TypeError, ValueError):
        return None
