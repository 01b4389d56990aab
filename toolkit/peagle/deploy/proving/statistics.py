"""Read vLLM's lines of statistics in the log of an endpoint, and wait for those of what was sent.

Stock vLLM writes them every 10 s in which it generates; they reach CloudWatch with a delay.
"""

from __future__ import annotations

from collections.abc import Callable
from email.utils import parsedate_to_datetime

from peagle.aws import runtime, sagemaker
from peagle.aws.client import Aws, Clock
from peagle.aws.errors import AccessDenied, Missing
from peagle.aws.runtime import LATE_MILLISECONDS, Tail
from peagle.aws.sagemaker import Endpoint, ResourceKind
from peagle.errors import Fix
from peagle.proof import StreamCounts, instance_of
from peagle.protocol import log_group

STATISTICS_SECONDS = LATE_MILLISECONDS / 1000 + 15.0
"""How long after the last answer its statistics may reach CloudWatch: vLLM writes them every 10 s,
and log streams have delays."""

_SANDBOX_SECONDS = 4.0
_POLL_SECONDS, _SANDBOX_POLL_SECONDS = 2.0, 0.1
_CLOCK_SECONDS = 5.0


class StatisticsReader:
    """Counts the lines of statistics that the instances of ``live``, an endpoint, write from now
    on. Earlier instances do not count; ``revision_started`` is when the revision in service was
    requested, in epoch seconds, where it is known. ``repeat`` is the command to repeat where the
    log may not be read."""

    def __init__(
        self,
        aws: Aws,
        live: Endpoint,
        clock: Clock,
        revision_started: float = 0.0,
        repeat: tuple[str, ...] = (),
    ) -> None:
        self.counts = StreamCounts()
        self._aws, self._live, self._clock = aws, live, clock
        self._skew = _skew(aws, live.name, clock)
        self._tail = Tail(aws, live.name, clock.now() + self._skew, live.hosts_components)
        self._started = max(live.created, _created(aws, live), revision_started)
        self._known: set[str] = set()
        self._repeat = repeat

    def read(self) -> None:
        """Count what is new in the log. Raises AccessDenied, naming the action to allow."""
        try:
            events = list(self._tail.new())
            for stream in {event.stream for event in events} - self._known:
                self._known.add(stream)
                if not self._is_of_this_revision(stream):
                    self.counts.ignored.add(instance_of(stream))
        except AccessDenied as denied:
            raise AccessDenied(
                f"the drafts are counted in the log of {self._live.name}: {denied.message}",
                Fix(
                    "ask for a policy that allows logs:FilterLogEvents on log-group:"
                    f"{log_group('*', self._live.hosts_components)}, then repeat the "
                    "command",
                    self._repeat,
                ),
                denied.code,
            ) from denied
        for event in events:
            self.counts.add(event.stream, event.raw, event.time)

    def wait(
        self,
        instances: int,
        is_complete: Callable[[], bool] = lambda: False,
        waiting: Callable[[], object] = lambda: None,
    ) -> None:
        """Read until so many instances have reported what they did until now, until
        ``is_complete``, or until nothing more is expected; ``waiting`` is called meanwhile."""
        seconds = STATISTICS_SECONDS if self._aws.is_amazon else _SANDBOX_SECONDS
        answered = self._clock.now()
        while True:
            self.read()
            waiting()
            if (
                is_complete()
                or self.counts.has_reported(answered + self._skew, instances)
                or self._clock.now() >= answered + seconds
            ):
                return
            self._clock.sleep(_POLL_SECONDS if self._aws.is_amazon else _SANDBOX_POLL_SECONDS)

    def _is_of_this_revision(self, stream: str) -> bool:
        """Whether the stream's instance started with this revision, and serves a variant of it."""
        variant = stream.partition("/")[0]
        if self._live.running and variant not in self._live.running:
            return False
        created = self._live.created
        if self._started <= created:
            return True
        copies = self._live.hosts_components
        return not runtime.has_logged_between(
            self._aws, self._live.name, stream, created, self._started, copies
        )


def _skew(aws: Aws, name: str, clock: Clock) -> float:
    """By how many seconds AWS's clock, which dates the lines of the log, is ahead of this
    machine's; a few are ignored."""
    here = clock.now()
    found = aws.call("sagemaker", "describe_endpoint", EndpointName=name)
    date = found.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    skew = parsedate_to_datetime(date).timestamp() - here if date else 0.0
    return skew if abs(skew) > _CLOCK_SECONDS else 0.0


def _created(aws: Aws, live: Endpoint) -> float:
    """When the configuration, or the model of copies, was created, in epoch seconds: no engine of
    it is older. 0 where that may not be read, or it was deleted while it serves."""
    try:
        kind: ResourceKind = "Model" if live.hosts_components else "EndpointConfig"
        found = sagemaker.description(aws, kind, live.revision)
    except (AccessDenied, Missing):
        return 0.0
    created = found.get("CreationTime")
    return created.timestamp() if created else 0.0
