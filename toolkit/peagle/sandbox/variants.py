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
