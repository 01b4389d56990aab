"""What a command on one deployment works with, and how it waits while SageMaker changes it.

Intent is written to the record before a change, the fact after it. A wait ends before SageMaker
gives up when an engine will never serve (``engine.logs`` knows why). Only log streams that began
with this change are read: during an update the earlier revision goes on logging.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from peagle.aws import sagemaker
from peagle.aws.client import Aws, Clock
from peagle.aws.errors import CAPACITY_FIX, AccessDenied, failed_start, lacks_capacity
from peagle.aws.runtime import Tail
from peagle.aws.sagemaker import BUSY, KINDS, Endpoint
from peagle.deploy import records
from peagle.deploy.state import Deployment, Failure, Resource, Revision, start_seconds
from peagle.engine.logs import StartLog
from peagle.errors import CloudError, Fix, PeagleError, Refused
from peagle.planning.operation import longest_seconds
from peagle.planning.plan import PROVISIONING_SECONDS
from peagle_serve.crash import Crash

SILENT_SECONDS = 15 * 60
"""A start without a log for so long is reported: an image is pulled in less."""

_BY_ONE_REQUEST = (*KINDS, "Alarm", "MetricFilter", "LifecycleRule")
"""The types of resources that one request creates."""


@dataclass(frozen=True)
class Progress:
    """One state of a deployment to display. ``lasting`` marks frequent updates, of which a display
    may skip most; ``is_notice``: the line stays on the screen."""

    state: str
    seconds: float = 0.0
    cost_usd: float | None = None
    line: str = ""
    lasting: bool = True
    is_logging: bool = False
    is_notice: bool = False


Observer = Callable[[Progress], object]


@dataclass
class DeploymentContext:
    """One command on one deployment. ``record`` always equals the record file."""

    aws: Aws
    record: Deployment
    observe: Observer = lambda progress: None
    clock: Clock = field(default_factory=Clock)

    def change(self, **fields: Any) -> None:
        """Change fields of the record and write it."""
        self.write(self.record.model_copy(update=fields))

    def write(self, record: Deployment) -> None:
        """Replace the record and write it."""
        records.save(record)
        self.record = record

    @contextmanager
    def creating(self, resource: Resource) -> Iterator[None]:
        """Record the resource as intended before the block, and as created after it. The entry of a
        new one that AWS rejects goes; that of weights stays."""
        entries = [r for r in self.record.of_type(resource.type) if r.name == resource.name]
        keys = {*resource.keys, *(key for earlier in entries for key in earlier.keys)}
        made = any(earlier.made for earlier in entries)
        intended = resource.model_copy(update={"made": made, "keys": tuple(sorted(keys))})
        self.write(self.record.with_resource(intended))
        try:
            yield
        except PeagleError as error:
            is_rejected = isinstance(error, Refused) or getattr(error, "rejected", False)
            if not entries and resource.type in _BY_ONE_REQUEST and is_rejected:
                self.write(self.record.without(resource.type, resource.name))
                if resource.type == "Endpoint":
                    self.change(billing_since=None)
            raise
        self.write(self.record.with_resource(intended.model_copy(update={"made": True})))

    @contextmanager
    def recording_failure(self) -> Iterator[None]:
        """Record the error that ends the block."""
        try:
            yield
        except PeagleError as error:
            self.change(failure=Failure.of(error))
            raise

    def say(self, state: str, line: str = "", lasting: bool = False) -> None:
        """Report progress to the observer."""
        self.observe(Progress(state, line=line, lasting=lasting))

    def notice(self, text: str, state: str = "") -> None:
        """Report something that the user has to know, although the work goes on; of the deployment,
        or of a ``state``."""
        named = state or self.record.name
        self.observe(Progress(named, line=text, lasting=False, is_notice=True))

    def say_bytes(self, state: str, done: int, total: int) -> None:
        """Report how many bytes are transferred."""
        self.say(state, f"{done / 1e6:.1f} of {total / 1e6:.1f} MB", lasting=done < total)


class WillNotServe(CloudError, code="will-not-serve"):
    """A new endpoint whose engine cannot start, however often SageMaker starts it again."""


class EndpointLog:
    """The log of what an endpoint starts since ``began`` (epoch seconds). It is optional: without
    the permission to read it, or while CloudWatch does not answer, there is nothing new."""

    def __init__(self, aws: Aws, live: Endpoint, began: float) -> None:
        self.began = began
        self.first_at: float | None = None
        self._progress = ""
        self._may_read = True
        earlier = live.created, began  # of an earlier revision, which is not one of this start
        self._tail = Tail(aws, live.name, began, live.hosts_components, earlier=earlier)
        self._started: dict[str, StartLog] = {}

    @property
    def is_silent(self) -> bool:
        """Whether nothing has been logged, as far as that is known."""
        return self._may_read and self.first_at is None

    @property
    def line(self) -> str:
        """The newest line that says what an engine does."""
        if not self._may_read:
            return "(no permission to read the log: logs:FilterLogEvents)"
        if self.first_at is None:
            return "no log yet"
        return self._progress or "the container has started"

    @property
    def fatal(self) -> Crash | None:
        """Why an engine will never serve, once that is known."""
        return next((log.fatal for log in self._started.values() if log.fatal), None)

    def read(self) -> None:
        """Read what is new."""
        for log in self._started.values():
            log.judge()
        try:
            for event in self._tail.new():
                log = self._started.setdefault(event.stream, StartLog())
                self.first_at = self.first_at or event.time
                log.add(event.raw)
                self._progress = log.progress or self._progress
        except AccessDenied:
            self._may_read = False
        except CloudError:
            return

    def end(self) -> Crash:
        """The line that explains why the engines have ended; ``fatal`` is known then."""
        self.read()
        for log in self._started.values():
            log.judge_end()
        logged = [crash for crash in (log.crash() for log in self._started.values()) if crash.line]
        return next((crash for crash in logged if crash.cause), logged[0] if logged else Crash(""))


def wait_while_busy(
    context: DeploymentContext,
    revision: Revision,
    since: float,
    log: EndpointLog | None = None,
    purpose: str = "",
) -> Endpoint | None:
    """The endpoint once SageMaker has finished the change that began at ``since``, in epoch
    seconds; ``None`` when it is gone. Raises WillNotServe, and CloudError for an update that will
    fail, as soon as the ``log`` says so; CloudError after ``limit_seconds``. boto3's own waiter
    takes a rolled-back update for a success."""
    served, clock = revision.served, context.clock
    started, warned = clock.now(), False
    while True:
        live = sagemaker.describe(context.aws, context.record.name)
        if live is None or live.status not in BUSY:
            return live
        silence = ""
        if log:
            log.read()
            if log.fatal:
                raise _will_not_serve(live, log.fatal)
            if log.is_silent:
                silence = (
                    f"no log yet: AWS probably has no free {served.instance_type}, or still pulls "
                    f"the image {served.image}"
                )
            if silence and not warned and clock.now() - log.began > SILENT_SECONDS:
                context.notice(f"{silence}; still waiting")
                warned = True
        waited = clock.now() - started
        if waited > limit_seconds(revision):
            message = f"{live.name} is still {live.status} after {waited / 60:.0f} minutes"
            message += f": {silence}" if silence else ""
            sentence = "run the command again to continue waiting, or remove the endpoint"
            fix = Fix(sentence, ("peagle", "destroy", live.name))
            raise CloudError(message, fix, "endpoint-timeout")
        pause = 1.0 if waited < 120 else 5.0
        if waited < 10 and not context.aws.is_amazon:
            pause = 0.1
        seconds, price = max(0.0, clock.now() - since), served.usd_per_hour
        context.observe(
            Progress(
                purpose or live.stage or live.status,
                seconds,
                None if price is None else price * seconds / 3600,
                log.line if log else "",
                is_logging=log is not None and log.first_at is not None,
            )
        )
        clock.sleep(pause)


def limit_seconds(revision: Revision) -> float:
    """How long the endpoint of a revision may take to start, or to be updated in steps, in
    seconds."""
    start = start_seconds(revision.served) + PROVISIONING_SECONDS
    plan = revision.plan
    if plan is None or plan.rollout is None:
        return start
    return longest_seconds(plan.rollout, plan.engines, start)


def not_in_service(live: Endpoint, log: EndpointLog) -> CloudError:
    """The error for an endpoint that does not serve the new configuration: with SageMaker's reason,
    and the log line that explains it."""
    cause, fix = (live.failure or "SageMaker reports no reason").rstrip("."), Fix(CAPACITY_FIX)
    if not lacks_capacity(cause):  # else nothing has started, so nothing has logged
        crash = log.end()
        if crash.line and crash.line not in cause:
            cause += f"; log: {crash.line}"
        fix = _fix(live, crash)
    if live.status == "InService":
        serving = f"the earlier configuration {live.revision} is still in service; {fix.sentence}"
        message, fix = f"the update was rolled back: {cause}", Fix(serving, fix.command)
        return failed_start(live.failure, message, fix, "endpoint-rolled-back")
    message = f"endpoint {live.name} is {live.status}: {cause}"
    if live.status == "Failed" and log.began <= live.created and log.fatal:
        return WillNotServe(message, fix)
    return failed_start(live.failure, message, fix, "endpoint-failed")


def _fix(live: Endpoint, crash: Crash) -> Fix:
    if crash.fix:
        return Fix(crash.fix, crash.command)
    return Fix("read the log", ("peagle", "logs", live.name))


def _will_not_serve(live: Endpoint, crash: Crash) -> CloudError:
    fix, line = _fix(live, crash), crash.line.rstrip(".")
    if live.status != "Creating":
        sentence = f"the earlier configuration keeps serving; {fix.sentence}"
        message = f"the update of {live.name} will fail: {line}"
        return CloudError(message, Fix(sentence, fix.command), "update-will-fail")
    return WillNotServe(f"endpoint {live.name} will never serve: {line}", fix)
