"""Heads that the catalogue knows, as another target's."""

from __future__ import annotations

from toolkit.catalog.models import Catalog, Target
from toolkit.findings import Finding, error


def stranger(hub_id: str, target: Target, catalog: Catalog) -> Finding | None:
    """An error when the catalogue knows this Hugging Face id as a head of another target.

    This is no rule: it asks the whole catalogue, and a rule looks at one case.
    """
    for other in catalog.targets.values():
        heads = {(drafter.weights or "").lower() for drafter in other.drafters}
        if other.id != target.id and hub_id.lower() in heads:
            names = ", ".join(drafter.name for drafter in target.drafters)
            message = f"{hub_id} was trained for {other.id}, not for {target.id}"
            fix = f"plan {other.short_name}, or a drafter of {target.short_name}: {names}"
            return error("head-not-for-target", "drafter", message, fix)
    return None
