"""The lifecycle of a bucket: our own rule among those of others.

S3 has no call for one rule: the whole configuration is read, changed and written, so two writers at
the same moment may lose a rule. Each rule of others is written back as it was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from peagle.aws.client import Aws
from peagle.aws.errors import Missing
from peagle.errors import CloudError

_NONE = "NoSuchLifecycleConfiguration"
_SIZE = "TransitionDefaultMinimumObjectSize"
"""A setting beside the rules, which a write without it resets."""


def own_rule(aws: Aws, bucket: str, rule_id: str) -> Mapping[str, Any] | None:
    """The rule with that id; ``None`` when the bucket has none."""
    return next((one for one in _configuration(aws, bucket)[0] if _is(one, rule_id)), None)


def put_rule(aws: Aws, bucket: str, rule: Mapping[str, Any]) -> None:
    """Add the rule, or replace the one with its id."""
    found, more = _configuration(aws, bucket)
    others = [one for one in found if not _is(one, rule["ID"])]
    if any("Prefix" in one for one in others):
        # S3 takes no rules of its earlier and its present form together.
        rule = {key: value for key, value in rule.items() if key != "Filter"} | rule["Filter"]
    rules = [*others, dict(rule)]
    if rules != found:
        _write(aws, bucket, rules, more)


def remove_rule(aws: Aws, bucket: str, rule_id: str) -> None:
    """Remove the rule with that id; ignores one that does not exist, or whose bucket does not."""
    found, more = _configuration(aws, bucket)
    rules = [one for one in found if not _is(one, rule_id)]
    if rules == found:
        return
    if rules:
        _write(aws, bucket, rules, more)
    else:
        aws.call("s3", "delete_bucket_lifecycle", Bucket=bucket)


def _configuration(aws: Aws, bucket: str) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The rules, and the setting beside them."""
    try:
        found = aws.call("s3", "get_bucket_lifecycle_configuration", Bucket=bucket)
    except CloudError as error:
        if isinstance(error, Missing) or error.code == _NONE:
            return [], {}
        raise
    return list(found.get("Rules") or ()), {_SIZE: found[_SIZE]} if found.get(_SIZE) else {}


def _is(rule: Mapping[str, Any], rule_id: str) -> bool:
    return rule.get("ID") == rule_id


def _write(aws: Aws, bucket: str, rules: list[dict[str, Any]], more: Mapping[str, str]) -> None:
    aws.call(
        "s3", "put_bucket_lifecycle_configuration",
        Bucket=bucket, LifecycleConfiguration={"Rules": rules}, **more,
    )  # fmt: skip
