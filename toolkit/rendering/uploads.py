"""The folders that must lie in S3 before a template is applied."""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.data import SHIPPED
from toolkit.planning.models import MODEL_BUCKET, Plan

_ROOT = f"s3://{MODEL_BUCKET}/"


@dataclass(frozen=True)
class Folder:
    """A folder of weights: ``part`` is ``target`` or ``drafter``, ``location`` where it lies,
    ``prefix`` its place in the bucket, with a slash at the end."""

    part: str
    location: str
    prefix: str

    @property
    def described(self) -> str:
        """Where it lies, for a person."""
        inside = self.location.removeprefix(SHIPPED)
        if inside == self.location:
            return self.location
        return f"model_catalog/{inside} of peagle-toolkit"


def folders(plan: Plan) -> tuple[Folder, ...]:
    """All folders that the plan uploads; empty when nothing lies on the user's machine."""
    parts = {
        "target": plan.target.weights,
        "drafter": plan.drafter.weights if plan.drafter else None,
    }
    return tuple(
        Folder(part, weights.location, weights.s3_uri.removeprefix(_ROOT))
        for part, weights in parts.items()
        if weights is not None and weights.s3_uri is not None
    )
