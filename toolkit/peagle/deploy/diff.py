"""What an update changes, in the user's terms: two ``Served`` compared; and two plans side by side.

A ``Served`` is made from a plan or read from the account, so plans are compared with plans and with
what is in service by the same function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from peagle.deploy.state import Served, served_by_plan
from peagle.findings import errors
from peagle.planning.plan import Plan
from peagle.planning.weights import portable_pair
from peagle.text import format_usd
from peagle.vllm.defaults import method_id
from peagle_serve.logs import is_secret

_HIDDEN = "(hidden)"
_LONGEST = 160
"""Characters of a value: a dashboard has whole queries, and texts of several lines."""

_LABELS = {
    "pair": "pair",
    "method": "method",
    "k": "K",
    "image": "image",
    "vllm": "vLLM",
    "ami": "host AMI",
    "instance_type": "instance",
    "instance_count": "instances",
    "copies": "copies",
    "max_model_len": "context",
    "startup_timeout_seconds": "start-up timeout",
    "download_timeout_seconds": "download timeout",
    "subnets": "subnets",
    "security_groups": "security groups",
    "network_isolation": "network isolation",
    "kms_key": "KMS key",
    "usd_per_hour": "price per hour",
}
"""The fields of ``Served`` that are compared, in the order of display."""

_FORMATS: dict[str, Callable[[Any], str]] = {
    "usd_per_hour": format_usd,
    "startup_timeout_seconds": "{} s".format,
    "download_timeout_seconds": "{} s".format,
    "subnets": lambda ids: ", ".join(ids) or "none",
    "security_groups": lambda ids: ", ".join(ids) or "none",
    "network_isolation": lambda on: "on" if on else "off",
}

_SPEED = (
    "tokens_per_second", "low", "high", "basis", "ttft_seconds", "itl_seconds",
    "usd_per_million_tokens", "source",
)  # fmt: skip
"""Keys of a plan's speed; ``None`` where it is unknown."""

_IN_SUMMARY = frozenset(
    {
        "pair", "method", "k", "instance_type", "instance_count", "max_model_len", "usd_per_hour",
        "speculation.model", "speculation.parallel_drafting", "engine.max-num-seqs",
        "engine.tensor-parallel-size",
    }
)  # fmt: skip
"""Settings that a summary shows."""


@dataclass(frozen=True)
class Change:
    """One setting before and after; ``None`` where it is not set, or unknown. ``setting`` is a
    field of ``Served``, or such as ``engine.kv-cache-dtype`` and ``variable.NAME``; outside of what
    the endpoint serves it begins with the resource, and ``before`` is what the account has. Secrets
    are hidden."""

    setting: str
    before: Any
    after: Any

    @property
    def text(self) -> str:
        """Such as ``K 5 -> 3``."""
        label, before, after = self.cells
        return f"{label} {before} -> {after}"

    @property
    def cells(self) -> tuple[str, str, str]:
        """Label, before and after, as texts."""
        kind, _, name = self.setting.partition(".")
        labels = {
            "engine": f"--{name}",
            "speculation": "drafter" if name == "model" else f"speculation: {name}",
            "weights": f"weights in /opt/ml/{name}",
            "variable": name,
        }
        of_resource = f"{kind} {name}".replace("_", " ").strip()
        label = labels.get(kind) or _LABELS.get(self.setting, of_resource)
        unset = "default" if kind in labels else "none"
        before, after = (self._shown(side, unset) for side in (self.before, self.after))
        return label, before, after

    def _shown(self, value: Any, unset: str) -> str:
        if value is None:
            return "unknown" if self.setting == "usd_per_hour" else unset
        if value is True and "." in self.setting:
            return "set"
        if self.setting == "k" and value == 0:
            return "no speculation"
        text = " ".join(_FORMATS.get(self.setting, str)(value).split())
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def compare_served(before: Served, after: Served) -> tuple[Change, ...]:
    """The settings that differ, most important first; name and region are not compared."""
    return tuple(_changes(before, after))


def _changes(before: Served, after: Served) -> Iterator[Change]:
    for name in _LABELS:
        old, new = getattr(before, name), getattr(after, name)
        if name in ("pair", "vllm") and not (old and new):
            continue  # the account's descriptions may lack them
        if name == "pair" and portable_pair(old) == portable_pair(new):
            continue  # other bytes in the folder are other weights
        if old != new:
            yield Change(name, old, new)
    # What ``Served`` has as fields too is left out.
    mappings: tuple[tuple[str, Mapping[str, Any], Mapping[str, Any], set[str]], ...] = (
        ("speculation", before.speculative_config, after.speculative_config,
         {"method", "num_speculative_tokens"}),
        ("engine", before.settings, after.settings, {"max-model-len", "speculative-config"}),
        ("variable", before.variables, after.variables, set()),
        ("weights", before.weights, after.weights, set()),
    )  # fmt: skip
    for kind, earlier, later, skipped in mappings:
        for name in sorted({*earlier, *later} - skipped):
            if (name in earlier, earlier.get(name)) == (name in later, later.get(name)):
                continue
            values = [
                side.get(name) or (True if name in side else None) for side in (earlier, later)
            ]
            if kind == "variable" and is_secret(name):
                values = [None if value is None else _HIDDEN for value in values]
            yield Change(f"{kind}.{name}", *values)


@dataclass(frozen=True)
class PlanComparison:
    """The results of two ``plans`` by name, and the ``changes`` from the first to the second."""

    plans: tuple[dict[str, Any], dict[str, Any]]
    changes: tuple[Change, ...]

    @property
    def other_changes(self) -> tuple[Change, ...]:
        """The changes that the summaries do not show."""
        return tuple(change for change in self.changes if change.setting not in _IN_SUMMARY)

    @property
    def price_increase(self) -> float | None:
        """By how much the second plan costs more per hour, as a share of the first one's price."""
        before, after = (plan["price_per_hour_usd"] for plan in self.plans)
        return after / before - 1 if before and after is not None else None


def compare_plans(first: Plan, second: Plan) -> PlanComparison:
    """The comparison of two plans."""
    differing = compare_served(served_by_plan(first), served_by_plan(second))
    return PlanComparison((_summarize(first), _summarize(second)), differing)


def _summarize(plan: Plan) -> dict[str, Any]:
    """The results of a plan: ``None`` is unknown, or does not apply; ``refused`` is the code of its
    first error."""
    speculation, speed, refused = plan.speculation, plan.speed, errors(plan.findings)
    return dict(
        pair=plan.pair,
        method=speculation and method_id(speculation.method, speculation.parallel_drafting),
        k=speculation.k if speculation else 0,
        region=plan.region,
        instance_type=plan.instance_type,
        instance_count=plan.instance_count,
        gpu=plan.fit.gpu,
        gpu_count=plan.fit.gpu_count,
        tensor_parallel_size=plan.fit.tensor_parallel_size,
        price_per_hour_usd=plan.price_per_hour_usd,
        max_model_len=plan.max_model_len,
        concurrency=plan.concurrency,
        max_concurrency=plan.fit.max_concurrency,
        **{key: getattr(speed, key, None) for key in _SPEED},
        refused=refused[0].code if refused else None,
    )
