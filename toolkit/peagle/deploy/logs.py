"""An endpoint's log in CloudWatch: its lines, the newest one, and the warm start it reports."""

from __future__ import annotations

import time
from collections.abc import Iterator

from peagle.aws.client import Aws
from peagle.aws.runtime import LogEvent, Tail
from peagle.deploy.preflight import Preflight
from peagle.deploy.state import Deployment
from peagle.deploy.status import endpoint_created
from peagle.engine_log import WarmStart, warm_start_in
from peagle.errors import PeagleError

_POLL_SECONDS = 2.0
_WIDEN = 10
"""Factor by which the search for the newest line widens: an idle engine writes none for hours."""


def endpoint_log(
    aws: Aws, record: Deployment, since: float | None = None, follow: bool = False
) -> Iterator[LogEvent]:
    """The lines of the endpoint's log, from ``since`` (epoch seconds; by default its creation) on.

    With ``follow`` it continues with new lines and never ends. Raises CloudError.
    """
    begun = _created(aws, record) if since is None else since
    tail = Tail(aws, record.name, begun, _has_copies(record))
    yield from tail.new()
    while follow:
        time.sleep(_POLL_SECONDS)
        yield from tail.new()


def age_of_newest_line(aws: Aws, record: Deployment, seconds: float) -> float | None:
    """How many seconds ago the newest line was written, if that is more than ``seconds`` ago;
    ``None`` if there is no line. Raises CloudError."""
    now, created = time.time(), _created(aws, record)
    seconds = max(seconds, 1)
    while seconds < now - created:
        seconds *= _WIDEN
        lines = Tail(aws, record.name, now - seconds, _has_copies(record)).new()
        if newest := max((line.time for line in lines), default=0):
            return now - newest
    return None


def _has_copies(record: Deployment) -> bool:
    return record.current.served.copies is not None


def _created(aws: Aws, record: Deployment) -> float:
    return endpoint_created(aws, record.name) or record.billing_since or 0.0


def reported_warm_start(aws: Aws, found: Preflight, begun: float) -> WarmStart | None:
    """What the log reports about a warm start of the engine that ``deploy`` has just started, which
    needs mounted weights; ``begun`` is when that deploy began, in epoch seconds."""
    name, mounts = found.desired.plan.name, found.desired.plan.mounts
    if found.change not in ("create", "update") or not mounts:
        return None
    created = endpoint_created(aws, name) if found.change == "create" else 0
    try:
        has_copies = found.desired.plan.copies is not None
        events = Tail(aws, name, created or begun, has_copies).drain()
    except PeagleError:
        return None  # the endpoint is in service; its log is optional
    return warm_start_in([event.raw for event in events])
