"""The dashboard of a deployment, and how long its log is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

from peagle.aws import cloudwatch
from peagle.aws.client import Aws
from peagle.aws.cloudwatch import create_log_group
from peagle.aws.errors import AccessDenied
from peagle.deploy.context import DeploymentContext
from peagle.deploy.state import Resource, Revision
from peagle.planning.plan import Plan
from peagle.render.dashboard import dashboard_body, dashboard_name, has_dashboard
from peagle.render.metrics import log_of


def put(context: DeploymentContext, plan: Plan, revision: Revision) -> None:
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
        remove(context.aws, resource)
        context.write(context.record.without(resource.type, resource.name))


def put_dashboard(
    context: DeploymentContext,
    plan: Plan,
    revision: Revision,
    beside: Mapping[str, Plan] | None = None,
) -> None:
    """Create or replace the dashboard of a plan that has one, with the variants ``beside``."""
    if not has_dashboard(plan):
        return
    name = dashboard_name(plan.name, plan.region)
    made = revision.resource("Dashboard", name)
    with context.creating(made):
        context.say("Creating dashboard", name)
        cloudwatch.put_dashboard(context.aws, name, dashboard_body(plan, beside))


def remove(aws: Aws, resource: Resource) -> None:
    """Remove a dashboard; one that does not exist is ignored."""
    cloudwatch.delete_dashboards(aws, [resource.name])


def resources_by_name(aws: Aws, name: str, revision: str) -> Iterator[Resource]:
    """The dashboard of the endpoint, which another machine may have made: it carries no tags, but
    its name is known. None where it may not be looked at."""
    called = dashboard_name(name, aws.region)
    with suppress(AccessDenied):
        text = cloudwatch.dashboard_text(aws, called)
        if text is not None and f'"{name}"' in text:  # that of peagle-tiny is not tiny's
            yield Resource(type="Dashboard", name=called, made=True, revision=revision)


def _keep_log(aws: Aws, plan: Plan, days: int) -> None:
    group = log_of(plan)
    create_log_group(aws, group, plan.company.tags)
    aws.call("logs", "put_retention_policy", logGroupName=group, retentionInDays=days)
