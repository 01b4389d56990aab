"""Faults that the sandbox produces on request: of a call (``ERRORS``, ``CONNECTION``), or of what
an operation of SageMaker starts (``ENDPOINT``)."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from peagle.errors import nearest

ERRORS = {
    "access-denied": "AWS rejects the call",
    "throttling": "AWS answers that the rate of calls is exceeded",
    "internal-error": "AWS answers with status 500",
}
CONNECTION = {
    "reset-before": "the connection closes without effect",
    "answer-lost": "it takes effect; the connection closes",
    "timeout": "it takes effect; the answer comes after --seconds",
    "timeout-before": "closes after --seconds without effect",
}
ENDPOINT = {
    "insufficient-capacity": "AWS has no instance of the type",
    "stuck-creating": "nothing starts or logs until the fault is cleared",
    "out-of-service": "the endpoint ends as OutOfService",
    "update-rollback-failed": "the update fails, and so does its rollback",
    "alarm-fires": "the alarms that watch the update fire",
    "spot-interruption": "a spot job is interrupted once, after --seconds of training",
}
CALL = ERRORS | CONNECTION
KINDS = CALL | ENDPOINT
"""Kind of a fault -> what happens."""
ALARM, INTERRUPTION = "alarm-fires", "spot-interruption"
AT_START = ENDPOINT.keys() - {ALARM, INTERRUPTION}
"""What an endpoint or a job meets as it begins."""

SERVICES = {
    "application-autoscaling": ("application-autoscaling",),
    "cloudformation": ("cloudformation",),
    "codebuild": ("codebuild",),
    "ecr": ("ecr",),
    "iam": ("iam",),
    "logs": ("logs",),
    "monitoring": ("cloudwatch",),
    "pricing": ("pricing",),
    "s3": ("s3",),
    "sagemaker": ("sagemaker", "sagemaker-runtime"),
    "secretsmanager": ("secretsmanager",),
    "servicequotas": ("service-quotas",),
    "sts": ("sts",),
    "tagging": ("resourcegroupstaggingapi",),
}
"""The name for which a service's requests are signed -> botocore's models of it, for the services
that an endpoint needs."""

BEARER_CALL = "CallWithBearerToken"
"""The action of a call through the OpenAI-compatible path, which no model has."""

_OPERATIONS = dict.fromkeys(ENDPOINT, ("CreateEndpoint", "UpdateEndpoint")) | {
    "insufficient-capacity": ("CreateEndpoint", "UpdateEndpoint", "CreateTrainingJob"),
    "spot-interruption": ("CreateTrainingJob",),
    "update-rollback-failed": ("UpdateEndpoint",),
    "alarm-fires": ("UpdateEndpoint", "UpdateInferenceComponent"),
}
"""Kind of a fault of what is started -> the operations that can meet it."""
DEFAULT_SECONDS = 120.0
"""The delay of a timeout: longer than boto3 waits for an answer (60 s)."""


@dataclass(frozen=True)
class Fault:
    """A fault of every call of ``operation``, or of the next ``times`` calls. ``instance_type``
    limits a fault of an endpoint to configurations with that type. ``seconds`` is the delay of a
    timeout, or the time until an interruption. ``seen`` counts the calls that the fault has met."""

    operation: str
    kind: str
    times: int | None = None
    instance_type: str | None = None
    seconds: float = DEFAULT_SECONDS
    seen: int = 0

    def check(self) -> None:
        """Raise ValueError for a fault that cannot happen."""
        service, _, operation = self.operation.rpartition(":")
        names = sorted(operation_names(service))
        if operation not in names:
            hint = nearest(operation, names)
            raise ValueError(f"unknown operation {self.operation!r}{': ' if hint else ''}{hint}")
        expected = _OPERATIONS.get(self.kind, (operation,))
        if self.kind not in KINDS or operation not in expected:
            raise ValueError(f"{self.kind!r} is no kind of fault of {operation}")
        if self.instance_type and self.kind not in ENDPOINT:
            raise ValueError(f"{self.kind} has no instance type: it fails the call itself")
        if not 0 <= self.seconds <= 3600:  # false for NaN
            raise ValueError(f"a delay has 0 to 3600 seconds, not {self.seconds}")


def operation_names(service: str = "") -> Iterator[str]:
    """The operations of one service of ``SERVICES``, or of all."""
    from peagle.request_validation import service_model  # botocore takes 0.2 s to import

    for signed, models in SERVICES.items():
        for model in models if service in ("", signed) else ():
            yield from service_model(model).operation_names
    if service in ("", "sagemaker"):
        yield BEARER_CALL


class Faults:
    """The faults of one sandbox, in the order in which they were added."""

    def __init__(self) -> None:
        self._active: list[Fault] = []
        self._changed = threading.Condition()
        self._cleared = 0

    def add(self, fault: Fault) -> None:
        """Add a fault. Raises ValueError for one that cannot happen."""
        fault.check()
        with self._changed:
            self._active.append(fault)

    def all(self) -> tuple[Fault, ...]:
        """The faults added since the last ``clear``, also those that are used up."""
        with self._changed:
            return tuple(self._active)

    def clear(self, operation: str | None = None) -> int:
        """Remove the faults of one operation, or all; what they hold up goes on. Returns how many
        were removed."""
        with self._changed:
            before = len(self._active)
            self._active = [
                fault for fault in self._active if operation not in (None, fault.operation)
            ]
            self._cleared += 1
            self._changed.notify_all()
            return before - len(self._active)

    def meet(
        self, service: str, operation: str, kinds: Collection[str],
        instance_types: Collection[str] | None = None,
    ) -> Fault | None:  # fmt: skip
        """The first fault of these ``kinds`` that the operation meets, which is counted; ``None``
        for none. Without ``instance_types`` a fault's own does not matter."""
        with self._changed:
            for place, fault in enumerate(self._active):
                of_service, _, name = fault.operation.rpartition(":")
                is_left = fault.times is None or fault.seen < fault.times
                is_meant = name == operation and of_service in ("", service)
                is_type = instance_types is None or fault.instance_type in (None, *instance_types)
                if is_left and is_meant and is_type and fault.kind in kinds:
                    self._active[place] = replace(fault, seen=fault.seen + 1)
                    return fault
        return None

    def hold_until_cleared(self) -> None:
        """Return after the next ``clear``."""
        with self._changed:
            before = self._cleared
            self._changed.wait_for(lambda: self._cleared != before)


FAULTS = Faults()
