"""The plan's image as a folder: the build context, and a README on building and pushing it."""

from __future__ import annotations

from peagle.catalog.schema import Catalog
from peagle.planning.plan import Plan
from peagle.render.files import RenderedFile, readme
from peagle.render.image import DOCKERFILE, PAIR_FILE, Recipe, context_files, pinned_base

FILES = (DOCKERFILE, ".dockerignore", PAIR_FILE, "cache/README", "peagle/peagle_serve", "README.md")
NO_ENDPOINT = True


def render(plan: Plan, catalog: Catalog) -> tuple[RenderedFile, ...]:
    return (*context_files(plan, choose_recipe(plan, catalog)), readme(plan, catalog, "dockerfile"))


def choose_recipe(plan: Plan, catalog: Catalog) -> Recipe:
    """How the image for the plan's GPUs is made."""
    base = pinned_base(plan, catalog.runtimes)
    return Recipe("gpu", base, catalog.targets.get(plan.target.id))


def unsupported(plan: Plan) -> str:
    """A plan whose image already contains the weights."""
    if plan.target.weights.kind != "image":
        return ""
    return f"the plan uses an existing image with baked weights, {plan.runtime.image}"
