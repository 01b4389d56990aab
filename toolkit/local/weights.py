"""The plan's weights where ``containers/serve`` looks for them, without copying a byte."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from toolkit.data import weights_folder
from toolkit.errors import UserError
from toolkit.local.cpu import ML_ROOT
from toolkit.planning.models import Plan, Weights

_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")


def folders(plan: Plan) -> dict[str, Path]:
    """Path in the container -> folder on this machine, for all weights that lie here.

    Raises UserError for a folder that is not there.
    """
    chosen = {plan.target.weights.engine_path: plan.target.weights}
    if plan.drafter and plan.drafter.weights:
        chosen[plan.drafter.weights.engine_path] = plan.drafter.weights
    return {path: _folder(weights) for path, weights in chosen.items() if _is_here(weights)}


def only_in_s3(plan: Plan) -> str | None:
    """The first weights that only AWS can mount, if any."""
    drafter = plan.drafter.weights if plan.drafter else None
    for weights in (plan.target.weights, drafter):
        if weights is not None and weights.kind == "s3":
            return weights.location
    return None


def only_in_image(plan: Plan) -> bool:
    """Whether the plan takes its weights from its image."""
    return plan.target.weights.kind == "image"


def weight_bytes(plan: Plan) -> int:
    """The size of all weights that lie on this machine, in bytes."""
    files = (file for folder in folders(plan).values() for kind in _WEIGHTS
             for file in folder.glob(kind))  # fmt: skip
    return sum(file.stat().st_size for file in files)


def link(plan: Plan, ml_root: Path) -> None:
    """Make every folder appear below ``ml_root``, which stands for ``/opt/ml``."""
    for path, folder in folders(plan).items():
        place = ml_root / PurePosixPath(path).relative_to(ML_ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(folder.resolve(), target_is_directory=True)


def _is_here(weights: Weights) -> bool:
    return weights.kind == "directory"


def _folder(weights: Weights) -> Path:
    folder = weights_folder(weights.location)
    if not folder.is_dir():
        raise UserError(
            f"the plan's weights {weights.location} are not on this machine",
            "make the plan on this machine, or copy the folder",
        )
    return folder
