"""Where ``peagle/tiny`` lies on this machine, and how an engine is given it."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from toolkit.catalog.models import Drafter
from toolkit.sandbox.bundled import catalog
from toolkit.sandbox.hosting.stand_in import DRAFTER_PATH, TARGET_PATH

TINY = "peagle/tiny"


def mount_tiny(ml_root: Path, drafter: Drafter | None) -> None:
    """Make tiny's folders appear below ``ml_root`` where ``stand_in`` says they are."""
    target = catalog().targets[TINY]
    folder = Path(catalog().origins[TINY]).parent
    places = {TARGET_PATH: target.weights}
    if drafter is not None and drafter.weights is not None:
        places[DRAFTER_PATH] = drafter.weights
    for path, weights in places.items():
        place = ml_root / PurePosixPath(path).relative_to("/opt/ml")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to((folder / weights).resolve(), target_is_directory=True)
