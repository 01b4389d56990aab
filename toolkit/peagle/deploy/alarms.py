"""Alarms during a rollout, a comparison and a return; and whether anyone receives them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from peagle.aws import cloudwatch
from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied
from peagle.aws.sagemaker import Endpoint
from peagle.deploy.context import DeploymentContext
from peagle.deploy.state import Deployment, Revision, Served
from peagle.errors import CloudError, Fix
from peagle.findings import Finding, error, note, warning
from peagle.planning.plan import AlarmKind, Plan
from peagle.planning.rollout import cost_text, rollout_of
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
from peagle.render.rollout import deployment_config

_AWS_OWN_KEY = "alias/aws/sns"
"""A key of AWS, whose policy does not let CloudWatch encrypt with it."""


class RolledBackOnAlarm(CloudError, code="rolled-back-on-alarm"):
    """An alarm fired during an update, and what served before serves again."""


def follow(context: DeploymentContext, revision: Revision) -> None:
    """Let the alarms watch a revision that serves again and whose plan another machine has: its
    configuration and K are known, and the limits of ``_known_limits``; others stay. Raises
    CloudError."""
    limits, served = _known_limits(revision), revision.served
    copies, command = served.copies is not None, tuple[str, ...]()
    if served.pair:  # else the command that switches speculation off is unknown
        command = without_speculation_of(served.pair, served.name, served.region)
    names = [resource.name for resource in context.record.of_type("Alarm")]
    for alarm in cloudwatch.described_alarms(context.aws, names) if names else ():
        kind = kind_of_alarm(context.record.name, alarm["AlarmName"])
        if kind is None:
            continue
        limit = limits.get(kind, alarm["Threshold"])
        text = alarm_text(kind, limit, copies, command)
        changed = following(alarm, revision.name, served.k, limit, text)
        if any(alarm.get(name) != value for name, value in changed.items()):
            context.say("Changing alarm", alarm["AlarmName"])
            cloudwatch.put_metric_alarm(context.aws, changed)


def _known_limits(revision: Revision) -> dict[AlarmKind | None, float]:
    """The limits that the account tells of a revision: the floor of its proof, and how many
    requests its engine runs at a time."""
    limits: dict[AlarmKind | None, float] = {}
    if revision.proof and revision.proof.floor is not None:
        limits["acceptance"] = revision.proof.floor
    most = revision.served.settings.get("max-num-seqs")
    if type(most) is int:
        limits["load"] = most
    return limits


def kept_of_plan_before(record: Deployment, revision: Revision) -> str:
    """What a return to a revision cannot renew, as only another machine has its plan: the limits
    of alarms that the account does not tell, and the dashboard. Empty where nothing is kept."""
    if revision.plan is not None:
        return ""
    known_limits = _known_limits(revision)
    kinds = {kind_of_alarm(record.name, alarm.name) for alarm in record.of_type("Alarm")}
    limits = {
        "ttft": "the limit of the alarm on the time to the first token (--slo)",
        "acceptance": "the floor of the acceptance alarm",
        "load": "the limit of the load alarm",
    }
    kept = [text for kind, text in limits.items() if kind in kinds and kind not in known_limits]
    kept += ["the dashboard"] if record.of_type("Dashboard") else []
    return " and ".join(kept)


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
            cloudwatch.put_metric_alarm(context.aws, suspended(alarm))
    except CloudError as error:
        context.notice(f"{name} counts the drafts of both plans together: {error.message}")


def rollout_parameter(context: DeploymentContext, revision: Revision, count: int) -> dict[str, Any]:
    """The parameter of UpdateEndpoint, or of UpdateInferenceComponent, with the rollout of an
    update of ``count`` instances or copies; empty where the plan of ``revision`` has none.

    During a rollback, an alarm that is in the state ALARM already would undo the way back at once:
    it is left out, and a notice says so.
    """
    config = deployment_config(revision.plan, count) if revision.plan else None
    if config is None:
        return {}
    rollback = config["AutoRollbackConfiguration"]
    names = [alarm["AlarmName"] for alarm in rollback["Alarms"]]
    fired = _in_alarm(context, tuple(names)) if context.record.returning_to else []
    left = [alarm for alarm in rollback["Alarms"] if alarm["AlarmName"] not in fired]
    for name in fired:
        context.notice(f"{name} is in the state ALARM already, and does not watch the rollback")
    if left:
        return {"DeploymentConfig": config | {"AutoRollbackConfiguration": {"Alarms": left}}}
    config.pop("AutoRollbackConfiguration")
    return {"DeploymentConfig": config}


def rollout_of_return(revision: Revision, count: int) -> str:
    """How the return to a kept revision replaces ``count`` instances: the rollout of its plan, or
    why there is none."""
    plan = revision.plan
    if plan is None:
        return "none: another machine has the plan of that revision"
    if plan.rollout is None:
        return "none: the plan of that revision has no --rollout"
    return cost_text(plan.rollout if plan.copies else rollout_of(plan.rollout, count))


def rollout_findings(plan: Plan, serving: Revision | None) -> Iterator[Finding]:
    """The note that a rollout which is new to a deployment without an update waits for the next."""
    rollout, before = plan.rollout, serving.plan.rollout if serving and serving.plan else None
    if rollout is None or (before and before.text == rollout.text):
        return
    message = f"nothing is updated now: the rollout ({rollout.text}) is that of the next update"
    if rollout.alarms:
        message += f"; its alarms ({', '.join(rollback_alarm_names(plan))}) are created now"
    yield note("rollout-at-next-update", "rollout", message, "pass --rollout to that update too")


def rolled_back(
    context: DeploymentContext, revision: Revision, live: Endpoint
) -> RolledBackOnAlarm | None:
    """The error for an update that an alarm undid, with the alarm's name; ``None`` when none did.

    SageMaker's reason names it; else the alarms that are in the state ALARM now did.
    """
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
        return [each["AlarmName"] for each in cloudwatch.alarms_in_alarm(context.aws, names)]
    return []


def topic_findings(aws: Aws, plan: Plan) -> Iterator[Finding]:
    """Whether the topic of the plan's alarms exists, can be published to, and has a subscriber."""
    topic = plan.observe.alarm_topic if plan.observe else None
    if topic is None:
        return
    where, own_key = "alarm_topic", _AWS_OWN_KEY
    try:
        attributes = cloudwatch.topic_attributes(aws, topic)
    except AccessDenied as denied:
        message = f"not known whether alarms can notify {topic}: {denied.message}"
        fix = "allow sns:GetTopicAttributes on it to these credentials, or check it"
        yield warning("topic-unknown", where, message, fix)
        return
    if attributes is None:
        create = ("aws", "sns", "create-topic", "--name", topic.rpartition(":")[2])
        creation = Fix("create it, or use another one", create)
        yield error("topic-missing", where, f"there is no topic {topic}", creation)
    elif attributes.get("KmsMasterKeyId", "").endswith(own_key):
        message = f"{topic} is encrypted with {own_key}, which CloudWatch may not use"
        fix = "use a key whose policy allows cloudwatch.amazonaws.com, or disable the encryption"
        yield warning("topic-encrypted", where, message, fix)
    elif attributes.get("SubscriptionsConfirmed", "0") == "0":
        message = f"{topic} has no confirmed subscription: no one receives its notifications"
        subscribe = (
            "aws", "sns", "subscribe", "--topic-arn", topic, "--protocol", "email",
            "--notification-endpoint", "ADDRESS",
        )  # fmt: skip
        subscription = Fix("subscribe, then confirm the e-mail", subscribe)
        yield warning("topic-without-subscribers", where, message, subscription)
