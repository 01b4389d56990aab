"""Alarms during a rollout, a comparison and a return to a kept revision."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from peagle.aws import cloudwatch
from peagle.aws.sagemaker import Endpoint
from peagle.deploy.context import DeploymentContext
from peagle.deploy.state import Deployment, Revision, Served
from peagle.errors import CloudError, Fix
from peagle.render.alarms import (
    alarm_name,
    alarm_text,
    following,
    kind_of_alarm,
    rollback_alarm_names,
    suspended,
    without_speculation,
    without_speculation_of,
)
from peagle.render.resources import deployment_config


class RolledBackOnAlarm(CloudError, code="rolled-back-on-alarm"):
    """An alarm fired during an update, and what served before serves again."""


def follow(context: DeploymentContext, revision: Revision) -> None:
    """Let the alarms watch a revision that serves again and whose plan another machine has: its
    configuration and K are known, the floor of its proof, and how many requests its engine runs at
    a time; other limits stay. Raises CloudError."""
    served, proof, command = revision.served, revision.proof, tuple[str, ...]()
    known: dict[str, Any] = {"load": served.settings.get("max-num-seqs")}
    known["acceptance"] = proof.floor if proof else None
    if served.pair:  # else the command that switches speculation off is unknown
        command = without_speculation_of(served.pair, served.name, served.region)
    names = [resource.name for resource in context.record.of_type("Alarm")]
    for alarm in cloudwatch.described_alarms(context.aws, names):
        kind = kind_of_alarm(context.record.name, alarm["AlarmName"])
        if kind is None:
            continue
        limit = known.get(kind)
        limit = limit if isinstance(limit, int | float) else alarm["Threshold"]
        text = alarm_text(kind, limit, served.copies is not None, command)
        changed = following(alarm, revision.name, served.k, limit, text)
        if any(alarm.get(name) != value for name, value in changed.items()):
            context.say("Changing alarm", alarm["AlarmName"])
            context.aws.call("cloudwatch", "put_metric_alarm", **changed)


def kept_of_plan_before(record: Deployment, revision: Revision) -> str:
    """What a return to a revision cannot renew, as only another machine has its plan; empty where
    nothing is kept."""
    kept = {"Alarm": "limits of alarms that it does not tell", "Dashboard": "the dashboard"}
    texts = (text for kind, text in kept.items() if any(r.type == kind for r in record.resources))
    return "" if revision.plan else " and ".join(texts)


def mixes_drafts(record: Deployment, candidate: Served) -> bool:
    """Whether a comparison with ``candidate`` mixes the tokens that the acceptance alarm counts:
    the engines of both variants write to one log."""
    name = alarm_name(record.name, "acceptance")
    both = record.serving is not None and record.serving.served.k > 0 and candidate.k > 0
    return both and any(alarm.name == name for alarm in record.of_type("Alarm"))


def suspend_acceptance(context: DeploymentContext, candidate: Served) -> None:
    """Let the acceptance alarm rest during a comparison that mixes its tokens; ``put`` and
    ``follow`` end that. Where it cannot be changed, a notice says so."""
    if not mixes_drafts(context.record, candidate):
        return
    name = alarm_name(context.record.name, "acceptance")
    try:
        for alarm in cloudwatch.described_alarms(context.aws, [name]):
            context.say("Suspending alarm", f"{name}: it counts the drafts of both plans together")
            context.aws.call("cloudwatch", "put_metric_alarm", **suspended(alarm))
    except CloudError as error:
        context.notice(f"{name} counts the drafts of both plans together: {error.message}")


def rollout_parameter(context: DeploymentContext, revision: Revision, count: int) -> dict[str, Any]:
    """The parameter of UpdateEndpoint, or of UpdateInferenceComponent, with the rollout of an
    update of ``count`` instances or copies; empty without one. During a rollback, an alarm that is
    in the state ALARM already would undo the way back at once: it is left out."""
    config = deployment_config(revision.plan, count) if revision.plan else None
    if config is None:
        return {}
    rollback = config.pop("AutoRollbackConfiguration")
    names = tuple(alarm["AlarmName"] for alarm in rollback["Alarms"])
    fired = _in_alarm(context, names) if context.record.returning_to else []
    for name in fired:
        context.notice(f"{name} is in the state ALARM already, and does not watch the rollback")
    left = [alarm for alarm in rollback["Alarms"] if alarm["AlarmName"] not in fired]
    watched = {"AutoRollbackConfiguration": {"Alarms": left}} if left else {}
    return {"DeploymentConfig": {**config, **watched}}


def rolled_back(
    context: DeploymentContext, revision: Revision, live: Endpoint
) -> RolledBackOnAlarm | None:
    """The error for an update that an alarm undid; ``None`` when none did. SageMaker's reason names
    the alarm; else those that are in the state ALARM now did."""
    plan = revision.plan
    if plan is None or plan.rollout is None or live.status != "InService":
        return None
    names = rollback_alarm_names(plan)
    fired = [name for name in names if name in (live.failure or "")] or _in_alarm(context, names)
    if not fired:
        return None
    fix = Fix("look at what the alarm watches", ("peagle", "status", live.name))
    if fired[0] == alarm_name(plan.name, "acceptance"):
        fix = Fix("switch speculation off", without_speculation(plan))
    return RolledBackOnAlarm(
        f"the update was rolled back on the alarm {' and '.join(fired)}: the earlier configuration "
        f"{live.revision} serves again",
        fix,
    )


def _in_alarm(context: DeploymentContext, names: tuple[str, ...]) -> list[str]:
    with suppress(CloudError):
        alarms = cloudwatch.described_alarms(context.aws, names, StateValue="ALARM")
        return [alarm["AlarmName"] for alarm in alarms]
    return []
