"""Two plans side by side: what each answers, and the settings that differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from peagle.deploy.diff import SettingChange, changes
from peagle.deploy.served import served_by_plan
from peagle.findings import errors
from peagle.planning import Plan

_SPEED = (
    "tokens_per_second", "low", "high", "basis", "ttft_seconds", "itl_seconds",
    "usd_per_million_tokens", "source",
)  # fmt: skip
"""Keys of a plan's speed; ``None`` where it is unknown."""

_IN_ANSWER = frozenset(
    {
        "pair", "method", "k", "instance_type", "instance_count", "max_model_len", "usd_per_hour",
        "speculation.model", "speculation.parallel_drafting", "engine.max-num-seqs",
        "engine.tensor-parallel-size",
    }
)  # fmt: skip
"""Settings that the answers show."""


@dataclass(frozen=True)
class PlanComparison:
    """Two ``plans``, their answers with equal keys, and their ``changes`` from the first to the
    second. ``refused`` is the first error of a plan that cannot be deployed, else ``None``."""

    plans: tuple[Plan, Plan]
    answers: tuple[dict[str, Any], dict[str, Any]]
    changes: tuple[SettingChange, ...]

    @property
    def other_changes(self) -> tuple[SettingChange, ...]:
        """The changes that the answers do not show."""
        return tuple(change for change in self.changes if change.setting not in _IN_ANSWER)

    @property
    def price_increase(self) -> float | None:
        """By how much the second plan costs more per hour, as a share of the first one's price;
        ``None`` when a price is unknown."""
        before, after = (plan.price_per_hour_usd for plan in self.plans)
        return after / before - 1 if before and after is not None else None

    def document(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "plans": list(self.answers),
            "changes": [change.document() for change in self.changes],
        }


def compare_plans(first: Plan, second: Plan) -> PlanComparison:
    """The comparison of two plans."""
    served = (served_by_plan(first), served_by_plan(second))
    answers = (_answer(first), _answer(second))
    return PlanComparison((first, second), answers, changes(*served))


def _answer(plan: Plan) -> dict[str, Any]:
    speculation, refused = plan.speculation, errors(plan.findings)
    speed = plan.model_dump(mode="json")["speed"] or {}
    return {
        "pair": plan.pair,
        "method": speculation.method if speculation else None,
        "parallel_drafting": speculation.parallel_drafting if speculation else None,
        "k": speculation.k if speculation else 0,
        "region": plan.region,
        "instance_type": plan.instance_type,
        "instance_count": plan.instance_count,
        "gpu": plan.fit.gpu,
        "gpu_count": plan.fit.gpu_count,
        "tensor_parallel_size": plan.fit.tensor_parallel_size,
        "price_per_hour_usd": plan.price_per_hour_usd,
        "max_model_len": plan.max_model_len,
        "concurrency": plan.concurrency,
        "max_concurrency": plan.fit.max_concurrency,
        **{key: speed.get(key) for key in _SPEED},
        "refused": refused[0].code if refused else None,
    }
