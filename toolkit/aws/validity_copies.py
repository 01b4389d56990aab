"""What is copied in S3: a text, or bucket and key by themselves, as boto3 takes them.

boto3 joins the two before it sends them, so the service model knows the text only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkit.aws.validity_model import Invalid

_SOURCE = "CopySource"
_REQUIRED = ("Bucket", "Key")


def copy_source(
    service: str, parameters: Mapping[str, Any]
) -> tuple[list[Invalid], Mapping[str, Any]]:
    """What is wrong with a ``CopySource`` in parts, and the parameters with it as one text."""
    given = parameters.get(_SOURCE)
    if service != "s3" or not isinstance(given, Mapping):
        return [], parameters
    wrong = [
        Invalid(f"{_SOURCE}.{name}", "the key is missing", "give it")
        if name not in given
        else Invalid(f"{_SOURCE}.{name}", f"expected text, found {given[name]!r}", "")
        for name in _REQUIRED
        if not isinstance(given.get(name), str)
    ]
    version = given.get("VersionId")
    text = f"{given.get('Bucket')}/{given.get('Key')}"
    joined = text if version is None else f"{text}?versionId={version}"
    return wrong, {**parameters, _SOURCE: joined}
