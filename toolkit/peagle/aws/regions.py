"""The regions of an account, and resources found by their tags."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import botocore.session

from peagle.aws.client import Aws


@dataclass(frozen=True)
class Tagged:
    """A resource and its tags. The list may name a resource for some minutes after its
    deletion."""

    arn: str
    tags: dict[str, str]

    @property
    def kind(self) -> str:
        """The type in the ARN, such as ``endpoint-config``; empty for a bucket."""
        return self._path[0] if len(self._path) == 2 else ""

    @property
    def name(self) -> str:
        """The last part of the ARN. SageMaker writes names there in lower case."""
        return self._path[-1]

    @property
    def _path(self) -> list[str]:
        return self.arn.split(":", 5)[5].split("/", 1)


def find_by_tag(
    aws: Aws, key: str, value: str | None = None, kinds: tuple[str, ...] = ()
) -> Iterator[Tagged]:
    """The resources of the region with the tag ``key``, and that ``value`` if one is given.
    ``kinds`` limits them, such as ``sagemaker:endpoint`` or ``s3``."""
    tag_filter = {"Key": key} | ({"Values": [value]} if value is not None else {})
    limits = {"ResourceTypeFilters": list(kinds)} if kinds else {}
    for mapping in aws.items(
        "resourcegroupstaggingapi",
        "get_resources",
        "ResourceTagMappingList",
        TagFilters=[tag_filter],
        **limits,
    ):
        tags = {tag["Key"]: tag["Value"] for tag in mapping.get("Tags", ())}
        yield Tagged(mapping["ResourceARN"], tags)


@cache
def hosting_regions(partition: str) -> tuple[str, ...]:
    """The regions of the partition (``aws``) in which SageMaker exists."""
    regions = botocore.session.get_session().get_available_regions("sagemaker", partition)
    return tuple(sorted(regions))
