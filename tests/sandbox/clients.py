"""Commands in one process share the boto3 clients of a sandbox: to make one takes longer than most
calls."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from peagle.aws.client import Aws

_MADE: dict[tuple[str, ...], Any] = {}
os.register_at_fork(after_in_child=_MADE.clear)  # connections are of one process
_make = Aws.client


@contextmanager
def shared_clients() -> Iterator[None]:
    """Share the clients of commands in this block, by service, region, address and key."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Aws, "client", _shared)
        try:
            yield
        finally:
            _MADE.clear()


@contextmanager
def own_clients() -> Iterator[None]:
    """Each connection makes clients of its own in this block: a client that has met faults retries
    less often."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Aws, "client", _make)
        yield


def _shared(aws: Aws, service: str) -> Any:
    address = aws.endpoint_url or os.environ.get("AWS_ENDPOINT_URL")
    if address is None:
        return _make(aws, service)
    key = (service, aws.region, address, aws._session.get_credentials().access_key)
    if key not in _MADE:
        _MADE[key] = _make(aws, service)
    return _MADE[key]
