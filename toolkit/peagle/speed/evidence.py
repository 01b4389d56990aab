"""The measured speeds of a target: on which GPUs, and the names of drafters in them."""

from __future__ import annotations

from peagle.catalog.schema import Drafter, SpeedRun

TARGET_ALONE: frozenset[str | None] = frozenset({None})
"""The drafter name of a run's speeds of the target alone."""


def is_on(run: SpeedRun, gpu: str, tensor_parallel_size: int) -> bool:
    """Whether the run was measured on this many of this GPU, so that its rows can be the answer."""
    return run.gpu == gpu and run.tensor_parallel_size == tensor_parallel_size


def names_in_runs(drafter: Drafter | None, own: bool) -> frozenset[str | None]:
    """The names of this drafter in runs; the user's own head has only its location."""
    if drafter is None:
        return TARGET_ALONE
    known = {drafter.weights} if own else {drafter.weights, drafter.name}
    return frozenset(name for name in known if name is not None)
