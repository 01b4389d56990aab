"""From what the user asked for to a recipe of an image."""

from __future__ import annotations

from collections.abc import Callable

from toolkit.catalog import load_catalog
from toolkit.catalog.images import image_uri
from toolkit.catalog.tables import Runtime
from toolkit.errors import NotFound
from toolkit.findings import Finding
from toolkit.images import Docker, engine_image
from toolkit.images.build import source_revision
from toolkit.local.packages import engine_packages
from toolkit.planning import Plan
from toolkit.planning.runtimes import IMAGE_WITHOUT_COUNTERS
from toolkit.rendering.image import Recipe

Progress = Callable[[str], object]


def findings_of_own(plan: Plan) -> tuple[Finding, ...]:
    """The plan's findings but the one about AWS's plain image, where ours takes its place."""
    return tuple(one for one in plan.findings if one.code != IMAGE_WITHOUT_COUNTERS)


def gpu_recipe(plan: Plan, base: str | None, bake_weights: bool) -> Recipe:
    """FROM the runtime's AWS image, by its digest where the catalogue knows it."""
    return Recipe("gpu", base or _pinned(plan), source_revision(), bake_weights)


def cpu_recipe(
    docker: Docker, plan: Plan, base: str | None, bake_weights: bool, progress: Progress
) -> Recipe:
    """FROM the CPU engine on ``base``, which is made first unless it is there."""
    packages = engine_packages(plan.runtime.vllm)
    below = base or f"python:{packages.python}-slim-bookworm"
    engine = engine_image(docker, below, packages, progress)
    return Recipe("cpu", engine, source_revision(), bake_weights)


def is_own_image(plan: Plan) -> bool:
    """Whether the plan names another image than AWS's: one that was given with --image."""
    return _aws_runtime(plan) is None


def _pinned(plan: Plan) -> str:
    """``repository@sha256:...`` of AWS's image if that is what the plan names."""
    runtime = _aws_runtime(plan)
    if runtime is None or runtime.digest is None:
        return plan.runtime.image
    return f"{plan.runtime.image.rpartition(':')[0]}@{runtime.digest}"


def _aws_runtime(plan: Plan) -> Runtime | None:
    """The runtime of the catalogue whose AWS image the plan names."""
    table = load_catalog().runtimes
    for runtime in table.runtimes:
        try:
            if image_uri(table, runtime, plan.region) == plan.runtime.image:
                return runtime
        except NotFound:
            continue
    return None
