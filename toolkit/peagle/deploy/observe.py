"""What observes a deployment: the dashboard, the log's retention, and captured requests.

The rule that deletes captured data stays when a later plan captures nothing, or elsewhere: what was
captured is deleted as promised. It goes when the plan leaves captured data to the bucket, and with
the deployment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from peagle.aws import cloudwatch, s3
from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied
from peagle.deploy.context import DeploymentContext
from peagle.deploy.state import Resource, Revision
from peagle.errors import CloudError
from peagle.planning.plan import Plan
from peagle.render.dashboard import dashboard_body, dashboard_name, has_dashboard
from peagle.render.metrics import log_of
from peagle.render.resources import capture_rule, captured_prefix, rule_id
from peagle.s3uri import S3Uri


def put_dashboard_and_log(context: DeploymentContext, plan: Plan, revision: Revision) -> None:
    """Create or replace the dashboard, and set the retention of the log, which is created first: a
    new endpoint has none. May be repeated; a plan without a dashboard removes an earlier one, and
    the log keeps its retention."""
    requested = plan.observe
    if requested and requested.log_retention_days is not None:
        _keep_log(context.aws, plan, requested.log_retention_days)
    if has_dashboard(plan):
        put_dashboard(context, plan, revision)
        return
    for resource in context.record.of_type("Dashboard"):
        remove_dashboard(context.aws, resource)
        context.write(context.record.without(resource.type, resource.name))


def put_dashboard(
    context: DeploymentContext,
    plan: Plan,
    revision: Revision,
    beside: Mapping[str, Plan] | None = None,
) -> None:
    """Create or replace the dashboard of a plan that has one, and of the variants in ``beside``."""
    if not has_dashboard(plan):
        return
    name = dashboard_name(plan.name, plan.region)
    made = revision.resource("Dashboard", name)
    with context.creating(made):
        context.say("Creating dashboard", name)
        cloudwatch.put_dashboard(context.aws, name, dashboard_body(plan, beside))


def remove_dashboard(aws: Aws, resource: Resource) -> None:
    """Remove a dashboard; one that does not exist is ignored."""
    cloudwatch.delete_dashboards(aws, [resource.name])


def dashboards_by_name(aws: Aws, name: str, revision: str) -> Iterator[Resource]:
    """The dashboard of the endpoint, which another machine may have made: it carries no tags, but
    its name is known. None where it may not be looked at."""
    called = dashboard_name(name, aws.region)
    with suppress(AccessDenied):
        text = cloudwatch.dashboard_text(aws, called)
        if text is not None and f'"{name}"' in text:  # that of peagle-tiny is not tiny's
            yield Resource(type="Dashboard", name=called, made=True, revision=revision)


def _keep_log(aws: Aws, plan: Plan, days: int) -> None:
    group = log_of(plan)
    cloudwatch.create_log_group(aws, group, plan.company.tags)
    aws.call("logs", "put_retention_policy", logGroupName=group, retentionInDays=days)


def put_capture_rule(context: DeploymentContext, plan: Plan, revision: Revision) -> None:
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
                remove_capture_rule(context.aws, context.record.name, resource)
                context.write(context.record.without(resource.type, resource.name))


def remove_capture_rule(aws: Aws, name: str, resource: Resource) -> None:
    """Remove the rule of the endpoint ``name``; ignores one that does not exist. Captured data
    stays."""
    prefix = S3Uri.parse(resource.name)
    s3.remove_lifecycle_rule(aws, prefix.bucket, rule_id(name, aws.region, prefix))


def capture_rules_by_name(
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
