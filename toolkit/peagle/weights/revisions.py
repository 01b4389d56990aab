"""Pin the Hub's weights of a plan: a branch is replaced by its current commit.

The engine downloads weights from the Hub at every start. By then, a branch may be at another
commit, whose weights nobody has checked.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable
from dataclasses import dataclass, replace

from peagle.catalog.schema import Catalog, Target
from peagle.checkpoints.entries import OWN
from peagle.checkpoints.hub import COMMIT, Hub, resolve_revision
from peagle.errors import CheckpointError, HubFailed
from peagle.findings import Finding, note
from peagle.planning.plan import Plan, Reason, Weights

_SECONDS = 5.0
"""The commits are optional, so the Hub must answer soon."""


@dataclass(frozen=True)
class PinnedRevisions:
    """The catalogue with commits in place of branches, and the user's own head with its commit
    (``None`` where that is not on the Hub); why; and what could not be resolved."""

    catalog: Catalog
    drafter: str | None
    reasons: tuple[Reason, ...]
    findings: tuple[Finding, ...]

    def add_to(self, plan: Plan) -> Plan:
        """``plan`` with these reasons and findings."""
        found = (*plan.findings, *self.findings)
        return plan.model_copy(
            update={"reasons": (*plan.reasons, *self.reasons), "findings": found}
        )


def pin_revisions(
    catalog: Catalog, plan: Plan, hub_of: Callable[[], Hub] = Hub.of_environment
) -> PinnedRevisions:
    """Ask the Hub for the commits of the plan's weights that are on a branch or tag.

    A commit that cannot be resolved is a finding, ``revision-not-resolved``.
    """
    parts = {
        "target": plan.target.weights,
        "drafter": plan.drafter.weights if plan.drafter else None,
    }
    commits: dict[str, str] = {}
    reasons: list[Reason] = []
    findings: list[Finding] = []
    for part, weights in parts.items():
        if weights is None or not _is_on_branch(weights):
            continue
        try:
            commits[part] = _commit(weights, hub_of)
        except (CheckpointError, HubFailed) as failed:
            findings.append(
                note(
                    "revision-not-resolved", part,
                    f"the commit of {weights.location} is unknown: {failed.message}",
                    failed.fix or "name a commit, or try again later",
                )
            )  # fmt: skip
            continue
        because = f"{weights.revision or 'main'} of {weights.location} on the Hub, when planned"
        reasons.append(Reason(what=f"{part} commit", value=commits[part], because=because))
    own = plan.drafter is not None and plan.drafter.name == OWN
    drafter = parts["drafter"] if own else None
    changed = _with_commits(catalog.targets[plan.target.id], plan, commits, own)
    targets = ChainMap({plan.target.id: changed}, catalog.targets)  # type: ignore[arg-type]
    return PinnedRevisions(
        replace(catalog, targets=targets) if commits else catalog,
        f"{drafter.location}@{commits['drafter']}" if drafter and "drafter" in commits else None,
        tuple(reasons),
        tuple(findings),
    )


def _is_on_branch(weights: Weights) -> bool:
    return weights.kind == "hub" and not COMMIT.fullmatch(weights.revision or "")


def _commit(weights: Weights, hub_of: Callable[[], Hub]) -> str:
    hub = replace(hub_of(), seconds=_SECONDS)
    return resolve_revision(hub, weights.location, weights.revision).commit


def _with_commits(target: Target, plan: Plan, commits: dict[str, str], own: bool) -> Target:
    """The target of the catalogue, it and the planned drafter at these commits."""
    update: dict[str, object] = {"revision": commits["target"]} if "target" in commits else {}
    if plan.drafter and "drafter" in commits and not own:
        pinned = {"revision": commits["drafter"]}
        update["drafters"] = tuple(
            one.model_copy(update=pinned) if one.name == plan.drafter.name else one
            for one in target.drafters
        )
    return target.model_copy(update=update)
