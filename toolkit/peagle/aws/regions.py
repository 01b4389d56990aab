"""The regions of an account, one question asked in each, and resources found by their tags."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TypeVar

import botocore.session

from peagle.aws.client import Aws
from peagle.aws.errors import UNKNOWN_KEY_CODES
from peagle.errors import CloudError
from peagle.parallel import run_parallel


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


DEADLINE_SECONDS = 120.0

T = TypeVar("T")


@cache
def hosting_regions(partition: str) -> tuple[str, ...]:
    """The regions of the partition (``aws``) in which SageMaker exists."""
    regions = botocore.session.get_session().get_available_regions("sagemaker", partition)
    return tuple(sorted(regions))


def in_each_region(
    aws: Aws, regions: Sequence[str], service: str, ask: Callable[[Aws], T]
) -> tuple[dict[str, T], dict[str, CloudError]]:
    """The answers by region, and the errors of regions that did not answer. ``ask`` calls
    ``service``. A region that the account has not enabled rejects the credentials, and is left
    out."""
    there = {region: aws.in_region(region) for region in regions}
    for connection in there.values():  # boto3 creates clients in one thread only
        connection.client(service)

    answers: dict[str, T] = {}
    errors: dict[str, CloudError] = {}

    def answer(region: str) -> None:
        try:
            answers[region] = ask(there[region])
        except CloudError as error:
            errors[region] = error

    late = CloudError(
        f"the regions did not answer within {DEADLINE_SECONDS:.0f} s",
        "check the network, or choose one with --region",
        "unreachable",
    )
    deadline = time.monotonic() + DEADLINE_SECONDS
    run_parallel([partial(answer, region) for region in regions], deadline, late)
    enabled = {region: e for region, e in errors.items() if e.code not in UNKNOWN_KEY_CODES}
    if errors and not answers and not enabled:
        raise next(iter(errors.values()))
    return answers, enabled
