"""How long captured requests and answers are kept: a rule of their bucket's lifecycle."""

from __future__ import annotations

import hashlib
from typing import Any

from peagle.planning.plan import Plan
from peagle.s3uri import S3Uri

_LONGEST_ID = 255


def rule_stem(endpoint: str, region: str) -> str:
    """How the names of all our rules for the endpoint begin; a dash and a hash follow."""
    return f"peagle-capture-{endpoint}-{region}"[: _LONGEST_ID - 9]


def rule_id(endpoint: str, region: str, prefix: S3Uri) -> str:
    """Such as ``peagle-capture-tiny-us-east-1-1a2b3c4d``: the name of our rule among the bucket's,
    one for each prefix, so that what was captured elsewhere in the bucket is deleted too."""
    digest = hashlib.sha256(prefix.key.encode()).hexdigest()[:8]
    return f"{rule_stem(endpoint, region)}-{digest}"


def captured_prefix(destination: str, endpoint: str) -> S3Uri:
    """Where SageMaker puts what it captures of the endpoint: a folder of its name below the
    destination."""
    folder = S3Uri.parse(destination).folder
    return S3Uri(folder.bucket, f"{folder.key}{endpoint}/")


def capture_rule(plan: Plan) -> tuple[S3Uri, dict[str, Any]] | None:
    """The prefix of the captured data and the rule that deletes it; ``None`` where the plan leaves
    that to the bucket. In a bucket with versions, deleted ones go a day later."""
    capture = plan.observe.capture if plan.observe else None
    if capture is None or capture.retention_days is None:
        return None
    prefix = captured_prefix(capture.s3_uri, plan.name)
    return prefix, {
        "ID": rule_id(plan.name, plan.region, prefix),
        "Status": "Enabled",
        "Filter": {"Prefix": prefix.key},
        "Expiration": {"Days": capture.retention_days},
        "NoncurrentVersionExpiration": {"NoncurrentDays": 1},
    }


def not_in_templates(plan: Plan) -> str:
    """Why a template cannot express the plan's retention of captured data; empty if it can."""
    found = capture_rule(plan)
    if found is None:
        return ""
    return (
        f"a template cannot add a rule to the lifecycle of {found[0].bucket}, which it does not "
        "own (--capture-retention 0 leaves that to the bucket)"
    )
