"""Whether the alarms of a plan reach somebody: the topic that they notify."""

from __future__ import annotations

from collections.abc import Iterator

from peagle.aws.client import Aws
from peagle.aws.cloudwatch import topic_attributes
from peagle.aws.errors import AccessDenied
from peagle.errors import Fix
from peagle.findings import Finding, error, warning
from peagle.planning.plan import Plan

_AWS_OWN_KEY = "alias/aws/sns"
"""A key of AWS, whose policy does not let CloudWatch encrypt with it."""


def topic_findings(aws: Aws, plan: Plan) -> Iterator[Finding]:
    """Whether the topic of the plan's alarms exists, can be published to, and has a subscriber."""
    topic = plan.observe.alarm_topic if plan.observe else None
    if topic is None:
        return
    try:
        found = topic_attributes(aws, topic)
    except AccessDenied as denied:
        yield warning(
            "topic-unknown",
            "--alarm-topic",
            f"not known whether alarms can notify {topic}: {denied.message}",
            "allow sns:GetTopicAttributes on it to these credentials, or check it",
        )
        return
    if found is None:
        _, _, name = topic.rpartition(":")
        yield error(
            "topic-missing",
            "--alarm-topic",
            f"there is no topic {topic}",
            Fix("create it, or use another one", ("aws", "sns", "create-topic", "--name", name)),
        )
    elif found.get("KmsMasterKeyId", "").endswith(_AWS_OWN_KEY):
        yield warning(
            "topic-encrypted",
            "--alarm-topic",
            f"{topic} is encrypted with {_AWS_OWN_KEY}, which CloudWatch may not use: alarms do "
            "not reach it",
            "use a key whose policy allows cloudwatch.amazonaws.com, or disable the encryption",
        )
    elif found.get("SubscriptionsConfirmed", "0") == "0":
        yield warning(
            "topic-without-subscribers",
            "--alarm-topic",
            f"nobody has a confirmed subscription of {topic}: its notifications reach nobody",
            Fix(
                "subscribe, then confirm the e-mail",
                ("aws", "sns", "subscribe", "--topic-arn", topic, "--protocol", "email",
                 "--notification-endpoint", "ADDRESS"),
            ),
        )  # fmt: skip
