"""The regions of an account, and resources found by their tags."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import botocore.session

from peagle.aws.client import Aws


def find_by_tag(
    aws: Aws, key: str, value: str | None, kinds: Sequence[str]
) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Kind, name and tags of SageMaker's resources in the region with the tag ``key``, and that
    ``value`` if one is given. Names are in lower case; a resource may be listed for some minutes
    after its deletion."""
    for mapping in aws.items(
        "resourcegroupstaggingapi", "get_resources", "ResourceTagMappingList",
        TagFilters=[{"Key": key} | ({"Values": [value]} if value is not None else {})],
        ResourceTypeFilters=[f"sagemaker:{kind}" for kind in kinds],
    ):  # fmt: skip
        kind, _, name = mapping["ResourceARN"].rpartition(":")[2].partition("/")
        yield kind, name, {tag["Key"]: tag["Value"] for tag in mapping.get("Tags", ())}


@cache
def hosting_regions(partition: str) -> tuple[str, ...]:
    """The regions of the partition (``aws``) in which SageMaker exists."""
    regions = botocore.session.get_session().get_available_regions("sagemaker", partition)
    return tuple(sorted(regions))
