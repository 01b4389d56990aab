"""What a plan sets outside of its endpoint: alarms, dashboard, log, captured data, end time, tags.

One rule for alarms and dashboard: a plan without them removes those of an earlier plan, and the
changes say so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from peagle.aws import sagemaker
from peagle.aws.client import Aws
from peagle.aws.sagemaker import ResourceKind, Tag
from peagle.deploy import alarms, limits, observe
from peagle.deploy.context import DeploymentContext
from peagle.deploy.costs import utc_text
from peagle.deploy.desired import DesiredState
from peagle.deploy.diff import SettingChange
from peagle.deploy.limits import SAME_END_SECONDS, End, planned_end
from peagle.deploy.state import Deployment, Revision
from peagle.deploy.variants import CANDIDATE
from peagle.errors import CloudError
from peagle.planning.observe import alarm_kinds, capture_text
from peagle.planning.plan import Plan
from peagle.render.alarms import kind_of_alarm
from peagle.render.dashboard import dashboard_name, has_dashboard


def put(context: DeploymentContext, plan: Plan, revision: Revision, end: End) -> tuple[Tag, ...]:
    """Apply the settings, and return the tags of the endpoint. May be repeated."""
    put_observability(context, plan, revision)
    return limits.set_end(context, end, revision.endpoint_config, plan.company)


def put_observability(context: DeploymentContext, plan: Plan, revision: Revision) -> None:
    """Apply the settings except the end: alarms, dashboard, log, captured data. May be repeated."""
    observe.put_dashboard_and_log(context, plan, revision)
    observe.put_capture_rule(context, plan, revision)
    alarms.put(context, plan, revision)


def show_candidate(context: DeploymentContext, candidate: Revision) -> None:
    """Show the candidate of a comparison on the dashboard too, where the plan in service has one.
    Where it cannot be written, a notice says so: both plans serve."""
    serving = context.record.serving
    if serving is None or serving.plan is None or candidate.plan is None:
        return
    try:
        observe.put_dashboard(context, serving.plan, serving, {CANDIDATE: candidate.plan})
    except CloudError as error:
        context.notice(f"the dashboard does not show the candidate: {error.message}")


def setting_changes(
    aws: Aws, record: Deployment, plan: Plan, revision: Revision
) -> Iterator[SettingChange]:
    """What applying ``plan``, as that revision, changes outside of the endpoint."""
    dashboards = [one.name for one in record.of_type("Dashboard")]
    planned = [dashboard_name(plan.name, plan.region)] if has_dashboard(plan) else []
    if dashboards != planned:
        yield SettingChange("dashboard", _listed(dashboards), _listed(planned))
    names = (one.name for one in record.of_type("Alarm"))
    known = {kind_of_alarm(record.name, name) or name for name in names}
    if known != set(alarm_kinds(plan)):
        yield SettingChange("alarms", _listed(sorted(known)), _listed(sorted(alarm_kinds(plan))))
    yield from _capture_change(record, plan)
    yield from _end_change(aws, record, revision)


def _capture_change(record: Deployment, plan: Plan) -> Iterator[SettingChange]:
    """What is captured of requests and answers, where the plan before is known."""
    before = record.current.plan
    if before is None:
        return
    texts = [
        capture_text(one.observe.capture) if one.observe and one.observe.capture else None
        for one in (before, plan)
    ]
    if texts[0] != texts[1]:
        yield SettingChange("captured data", *texts)


def _listed(names: list[str]) -> str | None:
    return ", ".join(names) or None


def _end_change(aws: Aws, record: Deployment, revision: Revision) -> Iterator[SettingChange]:
    """Where the end moves; deploy itself reports an end that it refuses."""
    before = record.ends_at
    with suppress(CloudError):
        after = planned_end(DeploymentContext(aws, record), revision).at
        if before is None or after is None:
            is_same = before is after
        else:
            is_same = abs(after - before) < SAME_END_SECONDS
        if not is_same:
            texts = (None if at is None else utc_text(at) for at in (before, after))
            yield SettingChange("end", *texts)


def tag_again(context: DeploymentContext, desired: DesiredState) -> None:
    """Give what exists the user's tags, where a plan differs in nothing else."""
    tags = desired.plan.company.tags
    live = sagemaker.describe(context.aws, context.record.name) if tags else None
    if live is None:
        return
    known = sagemaker.tags_of(context.aws, live.arn)
    if tags.items() <= known.items():
        return
    context.say("Tagging", ", ".join(f"{key}={value}" for key, value in sorted(tags.items())))
    others: dict[ResourceKind, str] = {
        "Model": desired.model_name,
        "EndpointConfig": desired.revision.endpoint_config,
    }
    for kind, name in others.items():
        found = sagemaker.description(context.aws, kind, name)
        sagemaker.retag(context.aws, found[f"{kind}Arn"], desired.plan.company.tag_list)
    if live.component is not None:
        sagemaker.retag(context.aws, live.component.arn, desired.plan.company.tag_list)
    sagemaker.retag(context.aws, live.arn, desired.plan.company.tag_list)
