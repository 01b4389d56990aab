"""A request to an endpoint that scaled to zero: retry it until a copy of the engine runs.

SageMaker refuses such a request at once and counts it; an alarm on that count starts a copy. The
engine saw nothing of what was refused, so that a retry neither loses nor doubles a request.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from peagle.aws import autoscaling, runtime
from peagle.aws.client import Aws, Clock
from peagle.aws.errors import AccessDenied, EngineRejected, NoCopyRuns
from peagle.aws.sagemaker import Endpoint
from peagle.deploy.state import Deployment
from peagle.errors import CloudError, Fix
from peagle.protocol import request_body
from peagle.text import format_duration

T = TypeVar("T")

DEFAULT_TIMEOUT_SECONDS = 30 * 60
RETRY_SECONDS = 5.0
"""Between two requests: each is counted, so that the alarm stays on until a copy runs."""

_PROGRESS_SECONDS = 1.0


class NotAwake(CloudError, code="not-awake"):
    """The endpoint scaled to zero, and did not wake up in the time that was given."""


@dataclass(frozen=True)
class WakeUpProgress:
    """How long the caller has waited for the endpoint ``name``, and how long a wake-up takes by the
    plan; ``None`` where that is unknown. Seconds."""

    name: str
    seconds: float
    expected: float | None

    @property
    def text(self) -> str:
        """``peagle-tiny wakes up: 12s of about 11 min``."""
        about = "" if self.expected is None else f" of about {self.expected // 60:.0f} min"
        return f"{self.name} wakes up: {format_duration(self.seconds)}{about}"


@dataclass(frozen=True)
class WakeUpOptions:
    """Wait at most ``timeout`` seconds, and call ``on_progress`` every second."""

    timeout: float = DEFAULT_TIMEOUT_SECONDS
    on_progress: Callable[[WakeUpProgress], object] = lambda progress: None
    clock: Clock = field(default_factory=Clock)


def retry_until_awake(
    aws: Aws, name: str, record: Deployment | None, send: Callable[[], T], options: WakeUpOptions
) -> tuple[T, float | None]:
    """The response of ``send``, and how many seconds it waited for a copy; ``None`` if one ran.

    Raises NoCopyRuns where nothing will start one, and NotAwake after the timeout.
    """
    plan = record.current.plan if record else None
    expected = plan.scaling.wake_up_seconds if plan and plan.scaling else None
    clock, began = options.clock, options.clock.now()
    refused = False
    while True:
        sent = clock.now()
        try:
            response = send()
        except NoCopyRuns:
            if not refused:
                _require_scaling(aws, name)
            refused = True
        else:
            return response, sent - began if refused else None
        end = min(clock.now() + RETRY_SECONDS, began + options.timeout)
        if clock.now() >= end:
            raise NotAwake(
                f"{name} scaled to zero, and did not wake up within "
                f"{format_duration(options.timeout)}",
                Fix("look at what it waits for", ("peagle", "status", name)),
            )
        while (left := end - clock.now()) > 0:
            options.on_progress(WakeUpProgress(name, clock.now() - began, expected))
            clock.sleep(min(_PROGRESS_SECONDS, left))


def wake(
    aws: Aws, live: Endpoint, record: Deployment | None, options: WakeUpOptions | None = None
) -> float | None:
    """Wake an endpoint that scaled to zero, with a request of one token, before requests whose
    times or drafts count. Returns the seconds that it took; ``None`` if a copy runs already.

    Raises what ``retry_until_awake`` raises.
    """
    if live.component is None or live.engine_count or live.status != "InService":
        return None
    plan = record.current.plan if record else None
    body = request_body("Hello", chat=plan is None or plan.proof.chat, max_tokens=1)

    def send() -> None:
        with suppress(EngineRejected):  # then the engine runs
            runtime.ask(aws, live.name, body)

    return retry_until_awake(aws, live.name, record, send, options or WakeUpOptions())[1]


def _require_scaling(aws: Aws, name: str) -> None:
    """Raise NoCopyRuns where no scaling starts a copy, as far as that may be read."""
    with suppress(AccessDenied):
        if autoscaling.registered(aws, name, policies=False) is None:
            raise NoCopyRuns(
                f"no copy of {name} runs, and it does not scale automatically",
                Fix("start one", ("peagle", "scale", name, "--to", "1")),
            )
