"""The regions of an account, and one question asked in each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TypeVar

import botocore.session

from peagle.aws.client import Aws
from peagle.aws.errors import UNKNOWN_KEY_CODES
from peagle.errors import CloudError
from peagle.parallel import run_parallel

DEADLINE_SECONDS = 120.0

T = TypeVar("T")


@cache
def hosting_regions(partition: str) -> tuple[str, ...]:
    """The regions of the partition (``aws``) in which SageMaker exists."""
    found = botocore.session.get_session().get_available_regions("sagemaker", partition)
    return tuple(sorted(found))


def in_each_region(
    aws: Aws, regions: Sequence[str], service: str, ask: Callable[[Aws], T]
) -> tuple[dict[str, T], dict[str, CloudError]]:
    """The answers by region, and the errors of regions that did not answer; ``service`` is the one
    that ``ask`` calls.

    A region that the account has not enabled rejects the credentials, and is left out. Raises the
    error when every region rejects them.
    """
    there = {region: aws.in_region(region) for region in regions}
    for one in there.values():  # boto3 creates clients in one thread only
        one.client(service)

    answers: dict[str, T] = {}
    errors: dict[str, CloudError] = {}

    def answer(region: str) -> None:
        try:
            answers[region] = ask(there[region])
        except CloudError as error:
            errors[region] = error

    try:
        run_parallel([partial(answer, region) for region in regions], _deadline())
    except TimeoutError as late:
        raise CloudError(
            f"the regions did not answer within {DEADLINE_SECONDS:.0f} s",
            "check the network, or choose one with --region",
            "unreachable",
        ) from late
    enabled = {region: e for region, e in errors.items() if e.code not in UNKNOWN_KEY_CODES}
    if errors and not answers and not enabled:
        raise next(iter(errors.values()))
    return answers, enabled


def _deadline() -> float:
    return time.monotonic() + DEADLINE_SECONDS
