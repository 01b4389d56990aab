"""Weights that only an image of the user's own can have, since nothing is mounted for them."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from toolkit.checks.images import in_ecr
from toolkit.errors import PeagleError
from toolkit.images import Docker, show
from toolkit.local.cpu import ML_ROOT, model_paths
from toolkit.sandbox.bundled import catalog
from toolkit.sandbox.hosting.order import Order
from toolkit.sandbox.state import EngineKind


def only_in_image(order: Order, ml_root: Path, kind: EngineKind) -> str | None:
    """Why the engine would not find its weights here, where an image would have them.

    ``None`` when they are here, or when that very image is run; and for AWS's own images, which
    have none: there a forgotten mount must fail as it does on AWS.
    """
    if order.model_data or _is_amazons(order.image):
        return None
    below = [PurePosixPath(path) for path in model_paths(order.environment).values()]
    named = [path.relative_to(ML_ROOT) for path in below if path.is_relative_to(ML_ROOT)]
    if all((ml_root / path).exists() for path in named):
        return None
    if kind == "docker" and _is_run_here(order.image):
        return None
    return f"its weights are baked into {order.image}, which this sandbox does not run"


def _is_amazons(image: str) -> bool:
    found = in_ecr(image)
    return found is None or found.account in catalog().runtimes.accounts.values()


def _is_run_here(image: str) -> bool:
    try:
        return show(Docker(), image).runtime == "cpu"
    except PeagleError:
        return False
