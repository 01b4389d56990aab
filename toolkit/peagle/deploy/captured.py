"""Captured requests and answers: the rule of their bucket that deletes them after some days.

The rule stays when a later plan captures nothing, or elsewhere: what was captured is deleted as
promised. It goes when the plan leaves captured data to the bucket, and with the deployment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from peagle.aws import s3
from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied
from peagle.deploy.context import DeploymentContext
from peagle.deploy.state import Resource, Revision
from peagle.errors import CloudError
from peagle.planning.plan import Plan
from peagle.render.capture import capture_rule, captured_prefix, rule_id
from peagle.s3uri import S3Uri


def put(context: DeploymentContext, plan: Plan, revision: Revision) -> None:
    """Let S3 delete what the plan captures after its time. May be repeated. Raises AccessDenied
    where the bucket's lifecycle may not be changed."""
    capture, found = plan.observe.capture if plan.observe else None, capture_rule(plan)
    if found is not None:
        prefix, rule = found
        made = revision.resource("LifecycleRule", prefix.uri)
        with context.creating(made), _explained(prefix.bucket):
            context.say(
                "Limiting captured data", f"{prefix.uri}: {rule['Expiration']['Days']} days"
            )
            s3.put_lifecycle_rule(context.aws, prefix.bucket, rule)
    elif capture is not None:
        left = captured_prefix(capture.s3_uri, plan.name).uri
        for resource in context.record.of_type("LifecycleRule"):
            if resource.name == left:
                remove(context.aws, context.record.name, resource)
                context.write(context.record.without(resource.type, resource.name))


def remove(aws: Aws, name: str, resource: Resource) -> None:
    """Remove the rule of the endpoint ``name``; ignores one that does not exist. Captured data
    stays."""
    prefix = S3Uri.parse(resource.name)
    s3.remove_lifecycle_rule(aws, prefix.bucket, rule_id(name, aws.region, prefix))


def resources_by_name(
    aws: Aws, name: str, configs: Iterable[tuple[Mapping[str, Any], str]]
) -> Iterator[Resource]:
    """The rules for what these configurations capture, each with its revision, which another
    machine may have made. None where they may not be looked at."""
    for description, revision in configs:
        uri = (description.get("DataCaptureConfig") or {}).get("DestinationS3Uri") or ""
        with suppress(CloudError, ValueError):
            prefix = captured_prefix(uri, name)
            if s3.own_lifecycle_rule(aws, prefix.bucket, rule_id(name, aws.region, prefix)):
                yield Resource(type="LifecycleRule", name=prefix.uri, made=True, revision=revision)


@contextmanager
def _explained(bucket: str) -> Iterator[None]:
    """Add to AWS's refusal how to do without the rule."""
    try:
        yield
    except AccessDenied as error:
        raise AccessDenied(
            f"{error.message} (the lifecycle of {bucket}, for --capture-retention)",
            "ask for a policy that allows s3:GetLifecycleConfiguration and "
            f"s3:PutLifecycleConfiguration on arn:aws:s3:::{bucket}, or leave it to the bucket "
            "with --capture-retention 0",
            error.code,
        ) from error
