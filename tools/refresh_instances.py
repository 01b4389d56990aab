"""Maintainers: new instance types, numbers, regions and quotas, as entries of instances.yaml.

    python -m tools.refresh_instances [REGION]

Needs credentials for ec2:DescribeInstanceTypes, pricing:GetProducts and
servicequotas:ListAWSDefaultServiceQuotas. Prints the entries that are new or differ, without their
prices; the table is written by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import botocore
import yaml

from peagle.aws.client import Aws, connect
from peagle.aws.errors import QUOTA_SUFFIX
from peagle.catalog import load_catalog
from peagle.catalog.tables import Instance, InstanceTable, domain
from peagle.data import data_folder
from peagle.request_validation import service_model
from peagle.text import json_object

SOURCE = f"ec2.describe_instance_types, botocore {botocore.__version__}"

_GPU_TYPE = re.compile(r"ml\.(?:g|p)\d")
_TOO_OLD = re.compile(r"ml\.p[23]\.")
"""K80 and V100, on which vLLM's images do not run."""

EC2_ARCHITECTURES = {"T4g": "sm_75", "RTX PRO Server 6000": "sm_120"}
"""GPU as EC2 names it -> ``gpu_architecture``, which EC2 does not report, of GPUs that the
catalogue does not have under this name: a refresh adds their types. All others are there."""

_BATCH = 100
_MIB_PER_GIB = 1024


def endpoint_types() -> tuple[str, ...]:
    """The types with NVIDIA GPUs that botocore lists for endpoints, except too old ones."""
    types = service_model("sagemaker").shape_for("ProductionVariantInstanceType").enum
    return tuple(name for name in types if _GPU_TYPE.match(name) and not _TOO_OLD.match(name))


def describe_types(aws: Aws, types: Iterable[str]) -> dict[str, dict[str, Any]]:
    """EC2's description of these types (``ml.g5.xlarge``) in the connection's region, without types
    that it does not offer there. Raises CloudError."""
    names = [name.removeprefix("ml.") for name in types]
    described: dict[str, dict[str, Any]] = {}
    for start in range(0, len(names), _BATCH):
        filters = [{"Name": "instance-type", "Values": names[start : start + _BATCH]}]
        for entry in aws.items("ec2", "describe_instance_types", "InstanceTypes", Filters=filters):
            described[f"ml.{entry['InstanceType']}"] = entry
    return described


def with_types(
    table: InstanceTable, types: Iterable[str], numbers: Mapping[str, Mapping[str, Any]]
) -> tuple[InstanceTable, tuple[str, ...]]:
    """The table with new types and corrected numbers, and the new types without numbers.

    A new type comes after the last one of its family (``ml.g6e``), else at the end.
    """
    architectures = EC2_ARCHITECTURES | {row.gpu: row.gpu_architecture for row in table.instances}
    instances = [
        row.model_copy(update=_numbers(numbers.get(row.type, {}))) for row in table.instances
    ]
    type_names = {row.type for row in instances}
    unknown: list[str] = []
    for name in types:
        if name in type_names:
            continue
        entry = numbers.get(name, {})
        described = _numbers(entry)
        gpu = str(entry["GpuInfo"]["Gpus"][0].get("Name")) if described else ""
        if gpu not in architectures:
            unknown.append(name)
            continue
        new = Instance(type=name, gpu=gpu, gpu_architecture=architectures[gpu], **described)
        family = f"{name.rpartition('.')[0]}."
        last = max((at for at, row in enumerate(instances) if row.type.startswith(family)),
                   default=len(instances) - 1)  # fmt: skip
        instances.insert(last + 1, new)
    source = SOURCE if len(instances) > len(type_names) else table.source
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


def with_regions(aws: Aws, table: InstanceTable) -> InstanceTable:
    """The table with all regions that host each type, by the prices of hosting; those of another
    partition stay, and so do those of types that are not listed."""
    instances = []
    for instance in table.instances:
        fields = {"instanceName": instance.type, "component": "Hosting"}
        filters = [{"Type": "TERM_MATCH", "Field": k, "Value": v} for k, v in fields.items()]
        rows = aws.items(
            "pricing", "get_products", "PriceList", ServiceCode="AmazonSageMaker", Filters=filters
        )
        regions = {json_object(row)["product"]["attributes"].get("regionCode") for row in rows}
        if listed := {region for region in regions if region}:
            kept = {served for served in instance.regions if domain(served) != domain(aws.region)}
            update = {"regions": tuple(sorted(listed | kept))}
            instance = instance.model_copy(update=update)
        instances.append(instance)
    return table.model_copy(update={"instances": tuple(instances)})


def with_quotas(aws: Aws, table: InstanceTable) -> InstanceTable:
    """The table with the codes and AWS's defaults of the quotas for endpoints."""
    listed = aws.items(
        "service-quotas", "list_aws_default_service_quotas", "Quotas", ServiceCode="sagemaker"
    )
    quotas = {quota["QuotaName"].removesuffix(QUOTA_SUFFIX): quota for quota in listed}
    instances = []
    for instance in table.instances:
        if quota := quotas.get(instance.type):
            code = quota.get("QuotaCode") or instance.quota_code
            update = {"quota_code": code, "quota_default": quota["Value"]}
            instance = instance.model_copy(update=update)
        instances.append(instance)
    return table.model_copy(update={"instances": tuple(instances)})


def main(region: str = "us-east-1") -> None:
    folder = data_folder("model_catalog")
    catalog, aws = load_catalog(folder), connect(region)
    type_names = [instance.type for instance in catalog.instances.instances]
    types = [*dict.fromkeys([*sorted(type_names), *endpoint_types()])]
    table, unknown = with_types(catalog.instances, types, describe_types(aws, types))
    if unknown:
        print(f"skipped, as EC2 in {region} does not describe them: {', '.join(unknown)}")
    table = with_quotas(aws, with_regions(aws, table))
    for instance in table.instances:
        if instance not in catalog.instances.instances:
            entry = instance.model_dump(exclude_defaults=True, exclude={"prices"})
            print(yaml.safe_dump([entry], sort_keys=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
