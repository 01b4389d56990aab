"""Wait while SageMaker changes an endpoint: state, time, cost, engine logs, and the end.

The wait ends before SageMaker gives up when an engine will never serve (``engine.logs`` knows
why). Only log streams that began with this change are read: during an update the earlier revision
goes on logging.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from peagle.aws import sagemaker
from peagle.aws.client import Aws
from peagle.aws.errors import CAPACITY_FIX, AccessDenied, failed_start, lacks_capacity
from peagle.aws.runtime import Tail, has_logged_between
from peagle.aws.sagemaker import BUSY, Endpoint
from peagle.deploy.context import DeploymentContext, Progress
from peagle.deploy.state import MAX_TIMEOUT_SECONDS, Revision, Served, start_seconds
from peagle.engine.logs import StartLog
from peagle.errors import CloudError, Fix
from peagle.planning.plan import PROVISIONING_SECONDS
from peagle.planning.rollout import longest_seconds
from peagle_serve.crash import Crash

SILENT_SECONDS = 15 * 60
"""A start without a log for so long is reported: an image is pulled in less."""

_POLLS = ((120.0, 1.0), (math.inf, 5.0))
"""Seconds between two polls, each until so many seconds have passed."""

_SANDBOX_POLLS = ((10.0, 0.1), *_POLLS)
_PATIENCE, _SANDBOX_PATIENCE = 120.0, 2.0
"""How many seconds without an answer of AWS, as on a train, the wait survives."""

_TICK_SECONDS = 1.0
"""Between two displays of the elapsed time."""

_STATES = {
    "Failed": ("endpoint-failed", ""),
    "OutOfService": ("endpoint-out-of-service", "; it takes no requests and is still billed"),
    "UpdateRollbackFailed": (
        "update-rollback-failed",
        "; both the update and its rollback failed, and a mix of old and new instances serves",
    ),
}
"""State -> code of the error, and what the state means."""

_DEPLOY_AGAIN = "deploying again deletes the endpoint and creates it again"


class WillNotServe(CloudError, code="will-not-serve"):
    """A new endpoint whose engine cannot start. SageMaker starts it again and again until
    ``gives_up``, in epoch seconds; ``None`` once it has given up."""

    gives_up: float | None = None


class EndpointLog:
    """The log of what an endpoint starts since ``began`` (epoch seconds)."""

    def __init__(self, aws: Aws, live: Endpoint, began: float) -> None:
        self.began = began
        self.progress = ""
        self.first_at: float | None = None
        self.may_read = True
        self._aws = aws
        self._live = live
        self._tail = Tail(aws, live.name, began, live.hosts_components)
        self._containers: dict[str, StartLog | None] = {}

    @property
    def is_silent(self) -> bool:
        """Whether nothing has been logged, as far as that is known."""
        return self.may_read and self.first_at is None

    @property
    def fatal(self) -> Crash | None:
        """Why an engine will never serve, once that is known."""
        return next((container.fatal for container in self._own() if container.fatal), None)

    def read(self) -> None:
        """Read what is new. The log is optional: without the permission, or while CloudWatch does
        not answer, there is nothing new."""
        for container in self._own():
            container.judge()
        try:
            for event in self._tail.new():
                if started := self._container(event.stream):
                    self.first_at = self.first_at or event.time
                    started.add(event.raw)
                    self.progress = started.progress or self.progress
        except AccessDenied:
            self.may_read = False
        except CloudError:
            return

    def end(self) -> Crash:
        """The line that explains why the engines have ended; ``fatal`` is known then."""
        self.read()
        for container in self._own():
            container.judge_end()
        crashes = [container.crash() for container in self._own()]
        logged = [crash for crash in crashes if crash.line]
        return next((crash for crash in logged if crash.cause), logged[0] if logged else Crash(""))

    def _own(self) -> Iterator[StartLog]:
        return (container for container in self._containers.values() if container)

    def _container(self, stream: str) -> StartLog | None:
        """The container that writes the stream; ``None`` for one of an earlier revision."""
        if stream not in self._containers:
            created = self._live.created
            is_older = self.began > created and has_logged_between(
                self._aws, self._live.name, stream, created, self.began,
                self._live.hosts_components,
            )  # fmt: skip
            self._containers[stream] = None if is_older else StartLog()
        return self._containers[stream]


def wait_while_busy(
    context: DeploymentContext,
    revision: Revision,
    since: float,
    log: EndpointLog | None = None,
    purpose: str = "",
) -> Endpoint | None:
    """The endpoint once SageMaker has finished changing it; ``None`` when it is gone.

    ``since`` is when the change began, in epoch seconds; ``purpose`` is displayed instead of
    SageMaker's status. Costs are shown at the price of ``revision``. Raises WillNotServe, and
    CloudError for an update that will fail, as soon as the ``log`` says so; CloudError after
    ``limit_seconds(revision)``.

    boto3's own waiter takes a rolled-back update for a success, polls
    ``UpdateRollbackFailed`` for an hour, and reports no progress.
    """
    started = context.clock.now()
    polls = _POLLS if context.aws.is_amazon else _SANDBOX_POLLS
    warned = False
    while True:
        live = _describe_patiently(context)
        if live is None or live.status not in BUSY:
            return live
        if log:
            log.read()
            if log.fatal:
                raise _will_not_serve(live, revision.served, log, log.fatal)
            silent = log.is_silent and context.clock.now() - log.began > SILENT_SECONDS
            if silent and not warned:
                context.notice(f"{_silence(live, revision.served)}; still waiting")
            warned = warned or silent
        waited = context.clock.now() - started
        if waited > limit_seconds(revision):
            raise _out_of_time(live, revision.served, waited, log)
        pause = next(pause for until, pause in polls if waited < until)
        while pause > 0:
            now = context.clock.now()
            context.observe(_progress(live, purpose, revision.served, since, log, now))
            context.clock.sleep(min(pause, _TICK_SECONDS))
            pause -= _TICK_SECONDS


def _describe_patiently(context: DeploymentContext) -> Endpoint | None:
    """The endpoint; a connection that is gone for a while does not end the wait."""
    asked = context.clock.now()
    patience = _PATIENCE if context.aws.is_amazon else _SANDBOX_PATIENCE
    while True:
        try:
            return sagemaker.describe(context.aws, context.record.name)
        except CloudError as error:
            if error.rejected or context.clock.now() - asked > patience:
                raise
            context.say("Waiting for AWS to answer", error.message, lasting=True)
            context.clock.sleep(_TICK_SECONDS)


def _progress(
    live: Endpoint, purpose: str, served: Served, since: float, log: EndpointLog | None, now: float
) -> Progress:
    seconds = max(0.0, now - since)
    price = served.usd_per_hour
    cost = None if price is None else price * seconds / 3600
    is_logging = log is not None and log.first_at is not None
    return Progress(
        purpose or live.stage or live.status, seconds, cost, _line(log), is_logging=is_logging
    )


def limit_seconds(revision: Revision) -> float:
    """How long the endpoint of a revision may take to start, or to be updated in steps, in
    seconds."""
    start = start_seconds(revision.served) + PROVISIONING_SECONDS
    plan = revision.plan
    if plan is None or plan.rollout is None:
        return start
    return longest_seconds(plan.rollout, plan.engines, start)


def not_in_service(live: Endpoint, log: EndpointLog) -> CloudError:
    """The error for an endpoint that does not serve the new configuration after the wait."""
    cause, fix = _cause(live, log)
    if live.status == "InService":
        serving = f"the earlier configuration {live.revision} is still in service; {fix.sentence}"
        message = f"the update was rolled back: {cause}"
        return failed_start(
            live.failure, message, Fix(serving, fix.command), "endpoint-rolled-back"
        )
    code, meaning = _STATES.get(live.status, _STATES["Failed"])
    message = f"endpoint {live.name} is {live.status}: {cause}{meaning}"
    if live.status == "Failed":
        is_new = log.began <= live.created
        if is_new and log.fatal and not lacks_capacity(live.failure or ""):
            return WillNotServe(message, fix)
        return failed_start(live.failure, message, fix, code)
    again = f"{_DEPLOY_AGAIN}; {fix.sentence}"
    return CloudError(message, Fix(again, fix.command), code)


def _cause(live: Endpoint, log: EndpointLog) -> tuple[str, Fix]:
    """SageMaker's reason, and the log line that explains it unless the reason contains it."""
    reason = (live.failure or "SageMaker reports no reason").rstrip(".")
    if lacks_capacity(reason):  # nothing has started, so nothing has logged
        return reason, Fix(CAPACITY_FIX)
    crash = log.end()
    explained = f"; log: {crash.line}" if crash.line and crash.line not in reason else ""
    return f"{reason}{explained}", _fix(live, crash)


def _fix(live: Endpoint, crash: Crash) -> Fix:
    if crash.fix:
        return Fix(crash.fix, crash.command)
    return Fix("read the log", ("peagle", "logs", live.name))


def _will_not_serve(live: Endpoint, served: Served, log: EndpointLog, crash: Crash) -> CloudError:
    fix, line = _fix(live, crash), crash.line.rstrip(".")
    if live.status != "Creating":
        sentence = f"the earlier configuration keeps serving; {fix.sentence}"
        message = f"the update of {live.name} will fail: {line}"
        return CloudError(message, Fix(sentence, fix.command), "update-will-fail")
    error = WillNotServe(f"endpoint {live.name} will never serve: {line}", fix)
    timeout = served.startup_timeout_seconds or MAX_TIMEOUT_SECONDS
    error.gives_up = (log.first_at or log.began) + timeout
    return error


def _out_of_time(
    live: Endpoint, served: Served, waited: float, log: EndpointLog | None
) -> CloudError:
    still = f"{live.name} is still {live.status} after {waited / 60:.0f} minutes"
    again = "run the command again to continue waiting, or remove the endpoint"
    fix = Fix(again, ("peagle", "destroy", live.name))
    if log and log.is_silent:
        return CloudError(f"{still}: {_silence(live, served)}", fix, "endpoint-silent")
    return CloudError(still, fix, "endpoint-timeout")


def _silence(live: Endpoint, served: Served) -> str:
    """What a start without a log probably means, and where to look."""
    steps = "pulls the image or downloads the weights" if served.weights else "pulls the image"
    return (
        f"no log yet: AWS probably has no free {served.instance_type}, or still {steps} "
        f"{served.image}. SageMaker names a reason only when it gives up; meanwhile look at the "
        f"status of {served.region} (AWS Health), at the image, and at what the role may read"
    )


def _line(log: EndpointLog | None) -> str:
    if log is None:
        return ""
    if not log.may_read:
        return "(no permission to read the log: logs:FilterLogEvents)"
    if log.first_at is None:
        return "no log yet"
    return log.progress or "the container has started"
