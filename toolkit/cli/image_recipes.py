"""From what the user asked for to a recipe of an image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from toolkit.findings import Finding
from toolkit.images import Docker, engine_image, with_digest
from toolkit.images.baking import baked
from toolkit.images.build import for_gpus
from toolkit.images.source import source_revision
from toolkit.local.packages import engine_packages
from toolkit.planning import Plan
from toolkit.planning.runtimes import IMAGE_WITHOUT_COUNTERS
from toolkit.rendering.baking import Baked
from toolkit.rendering.image import Recipe, RuntimeKind
from toolkit.rendering.image_names import base_of, parse_tag, split_image

Progress = Callable[[str], object]

_ABOUT_PLACE = frozenset({"image-not-in-ecr", "image-in-another-region"})
"""Findings about where SageMaker would take an image from."""


@dataclass(frozen=True)
class Request:
    """An image that somebody wants: ``tag`` and ``base`` where they were named.

    Raises UserError at once for names that Docker or a registry would refuse later.
    """

    plan: Plan
    runtime: RuntimeKind
    tag: str | None = None
    base: str | None = None
    bake_weights: bool = False

    def __post_init__(self) -> None:
        if self.base is not None:
            split_image(self.base)
        if self.tag is not None:
            parse_tag(self.tag)

    @property
    def below(self) -> str:
        """The image that ours will lie on, or for a CPU the engine below it."""
        if self.base is not None:
            return self.base
        if self.runtime == "gpu":
            return base_of(self.plan)
        return f"python:{engine_packages(self.plan.runtime.vllm).python}-slim-bookworm"


def findings_of_own(plan: Plan) -> tuple[Finding, ...]:
    """The plan's findings but the one about AWS's plain image, where ours takes its place."""
    return tuple(one for one in plan.findings if one.code != IMAGE_WITHOUT_COUNTERS)


def findings_for_building(plan: Plan) -> tuple[Finding, ...]:
    """What somebody should know who builds an image: no notes about serving it."""
    return tuple(one for one in findings_of_own(plan) if one.level != "note")


def findings_here(plan: Plan, engine_kind: str) -> tuple[Finding, ...]:
    """The findings of a plan that is run on this machine: a container's image may lie here."""
    found = findings_of_own(plan)
    if engine_kind != "docker":
        return found
    return tuple(one for one in found if one.code not in _ABOUT_PLACE)


def gpu_recipe(docker: Docker, request: Request, progress: Progress) -> Recipe:
    """FROM the base, by its digest where one is to be had; the base is fetched for that."""
    base = with_digest(for_gpus(docker), request.below, progress)
    return Recipe("gpu", base, source_revision(), weights_of(request, progress))


def cpu_recipe(docker: Docker, request: Request, progress: Progress) -> Recipe:
    """FROM the CPU engine on the base, which is made first unless it is there."""
    packages = engine_packages(request.plan.runtime.vllm)
    engine = engine_image(docker, request.below, packages, progress)
    return Recipe("cpu", engine, source_revision(), weights_of(request, progress))


def weights_of(request: Request, progress: Progress) -> tuple[Baked, ...]:
    """What is baked in, if anything is to be."""
    return baked(request.plan, progress) if request.bake_weights else ()
