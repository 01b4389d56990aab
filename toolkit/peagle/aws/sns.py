"""SNS: the topic that alarms notify."""

from __future__ import annotations

from collections.abc import Mapping

from peagle.aws.client import Aws
from peagle.aws.errors import Missing


def topic_attributes(aws: Aws, topic: str) -> Mapping[str, str] | None:
    """The attributes of the topic with that ARN; ``None`` when there is none. Raises
    AccessDenied."""
    try:
        found = aws.call("sns", "get_topic_attributes", TopicArn=topic)
    except Missing:
        return None
    attributes: Mapping[str, str] = found["Attributes"]
    return attributes
