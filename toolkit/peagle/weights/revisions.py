"""Pin the Hub's weights of a plan: a branch is replaced by its current commit.

The engine downloads weights from the Hub at every start. By then, a branch may be at another
commit, whose weights nobody has checked.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable
from dataclasses import dataclass, replace

from peagle.catalog.schema import Catalog
from peagle.checkpoints.entries import OWN
from peagle.checkpoints.hub import COMMIT, Hub, resolve_revision
from peagle.errors import CheckpointError, HubFailed
from peagle.findings import Finding, note
from peagle.planning.plan import Plan, Reason

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
        findings = (*plan.findings, *self.findings)
        return plan.model_copy(
            update={"reasons": (*plan.reasons, *self.reasons), "findings": findings}
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
        if weights is None or weights.kind != "hub" or COMMIT.fullmatch(weights.revision or ""):
            continue
        try:
            hub = replace(hub_of(), seconds=_SECONDS)
            commits[part] = resolve_revision(hub, weights.location, weights.revision).commit
        except (CheckpointError, HubFailed) as failed:
            findings.append(note(
                "revision-not-resolved", part,
                f"the commit of {weights.location} is unknown: {failed.message}",
                failed.fix or "name a commit, or try again later",
            ))  # fmt: skip
            continue
        because = f"{weights.revision or 'main'} of {weights.location} on the Hub, when planned"
        reasons.append(Reason(what=f"{part} commit", value=commits[part], because=because))
    has_own_head = plan.drafter is not None and plan.drafter.name == OWN
    head = parts["drafter"] if has_own_head else None
    target = catalog.targets[plan.target.id]
    if "target" in commits:
        target = target.model_copy(update={"revision": commits["target"]})
    if plan.drafter and "drafter" in commits and not has_own_head:
        pinned = {"revision": commits["drafter"]}
        drafters = tuple(
            drafter.model_copy(update=pinned) if drafter.name == plan.drafter.name else drafter
            for drafter in target.drafters
        )
        target = target.model_copy(update={"drafters": drafters})
    targets = ChainMap({target.id: target}, catalog.targets)  # type: ignore[arg-type]
    return PinnedRevisions(
        replace(catalog, targets=targets) if commits else catalog,
        f"{head.location}@{commits['drafter']}" if head and "drafter" in commits else None,
        tuple(reasons),
        tuple(findings),
    )
