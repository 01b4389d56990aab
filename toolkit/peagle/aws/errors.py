"""The errors of AWS that callers handle, and what SageMaker's reasons of a failure mean.

``client`` makes them of botocore's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from peagle.errors import CloudError, Fix, UserError

CREDENTIALS_FIX = Fix(
    "store an access key, specify a --profile, or use --sandbox, which needs no account; with IAM "
    "Identity Center, sign in",
    ("aws", "sso", "login"),
)

QUOTA_IN_MESSAGE = re.compile(r"service limit '(?P<name>[^']+)'")
"""The name of the quota in SageMaker's message."""

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
"""Names of this machine in the address of a local AWS, such as the sandbox."""


class Missing(CloudError, code="resource-missing"):
    """The requested resource does not exist.
    Fix: check its name and region; repeat the command if something else has just removed it"""


class AlreadyExists(CloudError, code="already-exists"):
    """A resource of that name exists already.
    Fix: repeat the command, or choose another name"""


class Busy(CloudError, code="resource-busy"):
    """The resource is being changed and accepts no other change now.
    Fix: wait until the change has ended, and repeat the command"""


class AccessDenied(CloudError, code="access-denied"):
    """The caller's IAM permissions do not cover the action.
    Fix: ask for a policy that allows the action that the message names; infra/iam has policies"""


class InsufficientCapacity(CloudError, code="insufficient-capacity"):
    """AWS has no free instance of the type now, or the account may not have another one.

    ``tried`` are the instance types that a deploy has tried, in order.
    """

    tried: Sequence[object] = ()

    def document(self) -> dict[str, Any]:
        """The error as ``--json`` prints it, with ``tried``."""
        return {**super().document(), "tried": list(self.tried)}


class NoCopyRuns(CloudError, code="no-copy-runs"):
    """The inference component has no copy now: it scaled to zero, and may wake up."""


class EngineRejected(UserError, code="engine-rejected"):
    """The engine rejects the request: too long, or with an invalid field.
    Fix: change the request as the engine's own message says."""


UNKNOWN_KEY_CODES = {
    "AuthFailure", "InvalidAccessKeyId", "InvalidClientTokenId", "InvalidSignatureException",
    "SignatureDoesNotMatch", "UnrecognizedClientException",
}  # fmt: skip

_NO_CAPACITY = re.compile(
    r"insufficient\s*(instance\s*|ml compute\s*)?capacity|capacityerror|unable to provision",
    re.IGNORECASE,
)

_IAM_PREFIX = {
    "resourcegroupstaggingapi": "tag", "service-quotas": "servicequotas",
    "sagemaker-runtime": "sagemaker",
}  # fmt: skip
_IAM_ACTION = {
    "HeadBucket": "ListBucket", "HeadObject": "GetObject", "ListObjectsV2": "ListBucket",
    "DeleteObjects": "DeleteObject", "ListMultipartUploads": "ListBucketMultipartUploads",
    "CopyObject": "PutObject",
    "GetBucketLifecycleConfiguration": "GetLifecycleConfiguration",
    **dict.fromkeys(("PutBucketLifecycleConfiguration", "DeleteBucketLifecycle"),
                    "PutLifecycleConfiguration"),
    **dict.fromkeys(("CreateMultipartUpload", "UploadPart", "UploadPartCopy",
                     "CompleteMultipartUpload"), "PutObject"),
}  # fmt: skip
"""The action that allows an operation, where their names differ."""


def iam_action(service: str, operation: str) -> str:
    """The action that allows an operation, such as ``s3:ListBucket`` for s3's HeadBucket."""
    return f"{_IAM_PREFIX.get(service, service)}:{_IAM_ACTION.get(operation, operation)}"


QUOTA_SUFFIX = " for endpoint usage"
"""What follows the instance type in the name of a quota."""

CAPACITY_FIX = (
    "choose another --region, reserve instances with a SageMaker training plan, go on for a time "
    "with --retry-for 2h, or try other types with --fallback-instance-types"
)


def lacks_capacity(reason: str) -> bool:
    """Whether AWS's reason for a failure is that it has no instance, or that the quota of the
    instance type is used up."""
    quota = QUOTA_IN_MESSAGE.search(reason)
    return bool(_NO_CAPACITY.search(reason) or (quota and "endpoint usage" in quota["name"]))


def failed_start(reason: str | None, message: str, fix: Fix, code: str) -> CloudError:
    """The error that an endpoint did not start: InsufficientCapacity if SageMaker's ``reason`` says
    so, else a CloudError with ``code``."""
    if lacks_capacity(reason or ""):
        return InsufficientCapacity(message, fix)
    return CloudError(message, fix, code=code)


def quota_fix(
    name: str,
    region: str,
    code: str | None = None,
    needed: int | None = None,
    in_sandbox: bool = False,
) -> Fix:
    """How to raise the SageMaker quota ``name``: the command where its ``code`` and the number
    ``needed`` are known, else the page of the console. The sandbox has a command of its own."""
    if in_sandbox:
        command = ("peagle", "sandbox", "quota", "set", name.partition(" for ")[0])
        sentence = "use fewer instances or another type, or raise the quota of the sandbox"
        return Fix(sentence, (*command, str(needed or "NUMBER"), "--region", region))
    other = "use fewer instances, another type or another region, or request an increase of"
    quota = f"'{name}'" if name else "the quota"
    if not (code and needed):
        return Fix(f"{other} {quota} in the Service Quotas console ({region}, Amazon SageMaker)")
    return Fix(
        f"{other} {quota} from Service Quotas",
        (
            "aws", "service-quotas", "request-service-quota-increase", "--service-code",
            "sagemaker", "--quota-code", code, "--desired-value", str(needed), "--region", region,
        ),
    )  # fmt: skip
