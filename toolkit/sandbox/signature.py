"""Which region and service an AWS request is for, from its signature. Nothing is verified."""

from __future__ import annotations

import re
from typing import NamedTuple

_SCOPE = re.compile(r"Credential=[^/\s]+/\d+/(?P<region>[^/]+)/(?P<service>[^/]+)/aws4_request")


class Scope(NamedTuple):
    """The region and the service of a Signature Version 4."""

    region: str
    service: str


def scope_of(authorization: str) -> Scope | None:
    """The scope in an Authorization header; ``None`` without such a signature."""
    found = _SCOPE.search(authorization)
    return Scope(found["region"], found["service"]) if found else None
