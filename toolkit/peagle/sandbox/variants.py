"""The variants of an endpoint configuration, and what a running endpoint keeps of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

Variants = Sequence[dict[str, Any]]
"""Variants as a configuration has them."""

_RETAINED = {
    "DesiredInstanceCount": "InitialInstanceCount",
    "DesiredWeight": "InitialVariantWeight",
}
"""VariantPropertyType -> the key of a variant that it retains."""


def managed_scaling(variant: Mapping[str, Any]) -> dict[str, Any]:
    """How the number of instances is managed, if the configuration says so."""
    scaling = variant.get("ManagedInstanceScaling")
    return {"ManagedInstanceScaling": scaling} if scaling else {}


def instances_of(variants: Variants) -> Counter[str]:
    """The number of instances of each type that ``variants`` ask for."""
    found: Counter[str] = Counter()
    for variant in variants:
        if "InstanceType" in variant:
            found[variant["InstanceType"]] += int(variant.get("InitialInstanceCount") or 1)
    return found


def find_variant(variants: Variants, name: str) -> dict[str, Any]:
    """The variant of that name; empty without one."""
    return next((one for one in variants if one["VariantName"] == name), {})


def weights_of(running: Variants) -> dict[str, float]:
    """Variant -> its share of the requests."""
    return {one["VariantName"]: float(one.get("CurrentWeight") or 0.0) for one in running}


def with_running_numbers(configured: Variants, running: Variants) -> list[dict[str, Any]]:
    """``configured`` with the instances and weights that the running variants have."""
    desired = {one["VariantName"]: one for one in running}
    return [
        {
            **variant,
            "InitialInstanceCount": desired[variant["VariantName"]].get("DesiredInstanceCount"),
            "InitialVariantWeight": desired[variant["VariantName"]].get("DesiredWeight"),
        }
        for variant in configured
    ]


def set_desired(running: Variants, desired: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """Write the weights and numbers of instances of ``desired`` into the running variants, as
    UpdateEndpointWeightsAndCapacities names them; return the new numbers by variant."""
    counts = {}
    for variant in running:
        change = desired.get(variant["VariantName"], {})
        if change.get("DesiredWeight") is not None:
            variant["DesiredWeight"] = variant["CurrentWeight"] = change["DesiredWeight"]
        if change.get("DesiredInstanceCount") is not None:
            variant["DesiredInstanceCount"] = change["DesiredInstanceCount"]
            counts[variant["VariantName"]] = int(change["DesiredInstanceCount"])
    return counts


def with_retained(
    variants: Variants, running: Variants, parameters: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """``variants`` of a new configuration; with RetainAllVariantProperties, those that already run
    keep their numbers and weights, unless a property is excluded."""
    if not parameters.get("RetainAllVariantProperties"):
        return [dict(variant) for variant in variants]
    excluded = {
        one["VariantPropertyType"]
        for one in parameters.get("ExcludeRetainedVariantProperties") or ()
    }
    kept = [name for property_type, name in _RETAINED.items() if property_type not in excluded]
    by_name = {variant["VariantName"]: variant for variant in running}
    return [
        {
            **variant,
            **{
                name: by_name[variant["VariantName"]][name]
                for name in kept
                if by_name.get(variant["VariantName"], {}).get(name) is not None
            },
        }
        for variant in variants
    ]
