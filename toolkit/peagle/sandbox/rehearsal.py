"""Rehearse what AWS may do: faults, quotas, and the calls that a command makes.

Every function raises UserError when the sandbox is not running.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from peagle.sandbox import state
from peagle.sandbox.client import control
from peagle.sandbox.faults import DEFAULT_SECONDS, Fault


@dataclass(frozen=True)
class ChangedQuota:
    """How many instances of a type all endpoints of a region may have."""

    instance_type: str
    region: str
    value: float


def add_fault(
    operation: str,
    kind: str,
    times: int | None = None,
    instance_type: str | None = None,
    seconds: float = DEFAULT_SECONDS,
) -> Fault:
    """Let calls or endpoints fail; see ``peagle.sandbox.faults`` for the kinds.

    Raises UserError for an unknown operation or kind, or for two that do not fit.
    """
    fault = Fault(operation, kind, times, instance_type, seconds)
    control("POST", "/faults", asdict(fault))
    state.forget_cached_answers()
    return fault


def list_faults() -> tuple[Fault, ...]:
    """The faults added since they were last cleared, also those that will not happen again."""
    return tuple(Fault(**one) for one in control("GET", "/faults")["faults"])


def clear_faults(operation: str | None = None) -> int:
    """Remove the faults of one operation, or all. Returns how many were removed."""
    removed: int = control("DELETE", "/faults", {"operation": operation})["removed"]
    return removed


def changed_quotas() -> tuple[ChangedQuota, ...]:
    """The quotas that were set; every other is the default."""
    return tuple(ChangedQuota(**one) for one in control("GET", "/quotas")["quotas"])


def set_scaling_speed(speed: float) -> None:
    """Let the times of automatic scaling pass ``speed`` times as fast: 1 to 1000."""
    control("PUT", "/scaling", {"speed": speed})


def recorded_calls() -> dict[str, int]:
    """Every AWS action called (``sagemaker:CreateModel``) and how often, the first one first."""
    calls: dict[str, int] = control("GET", "/calls")["calls"]
    return calls


def forget_calls() -> None:
    """Begin to record calls again."""
    control("DELETE", "/calls")


def advance_clock(seconds: float) -> tuple[str, ...]:
    """Move the clock of the sandbox's EventBridge Scheduler forward; the names of the schedules
    that have fired."""
    return tuple(control("PUT", "/clock", {"seconds": seconds})["fired"])
