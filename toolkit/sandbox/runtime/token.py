"""The bearer token of the OpenAI-compatible path.

Its shape: ``sagemaker-api-key-`` and, in base64, a URL presigned for CallWithBearerToken. The
signature is not checked: the sandbox knows no secret keys.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs

PREFIX = "sagemaker-api-key-"
LONGEST = timedelta(hours=12)
_ACTION = "CallWithBearerToken"


class BadToken(Exception):
    """Not a token, or no longer one."""


def region_of(authorization: str, now: datetime | None = None) -> str:
    """The region that the token in an Authorization header is for. Raises BadToken."""
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token.startswith(PREFIX):
        raise BadToken(f"a bearer token that begins with {PREFIX} is needed")
    query = _query(token.removeprefix(PREFIX).strip())
    try:
        if query["Action"] != _ACTION or not query["X-Amz-Signature"]:
            raise BadToken(f"the token is not for {_ACTION}")
        _, _, region, service, _ = query["X-Amz-Credential"].split("/")
        signed = datetime.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        lifetime = timedelta(seconds=int(query["X-Amz-Expires"]))
    except (KeyError, ValueError, OverflowError) as error:
        raise BadToken(f"the token lacks what a presigned URL has ({error})") from None
    if service != "sagemaker":
        raise BadToken(f"the token is for the service {service}")
    if (now or datetime.now(UTC)) > signed + min(lifetime, LONGEST):
        raise BadToken("the token has expired")
    return region


def _query(encoded: str) -> dict[str, str]:
    try:
        text = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True).decode()
        query = parse_qs(text.partition("?")[2])
    except ValueError:
        raise BadToken("the token is not base64 of a URL") from None
    return {name: values[0] for name, values in query.items()}
