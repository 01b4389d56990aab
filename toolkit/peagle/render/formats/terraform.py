"""The plan as Terraform: a root module, the values that it reads, and the module of the endpoint.

The endpoint's module is the project's own, ``infra/terraform``, copied next to the root module. All
of the plan is in ``values.json``, so a changed plan is a changed file of values.
"""

from __future__ import annotations

import re

from peagle.catalog.schema import Catalog
from peagle.data import data_folder
from peagle.planning.plan import Plan
from peagle.render.files import RenderedFile, json_file, readme
from peagle.render.resources import not_in_templates
from peagle.render.values import values

MAIN = "main.tf"
VALUES = "values.json"
MODULE = "endpoint"

_PARTS = (
    "end.tf", "main.tf", "observability.tf", "outputs.tf", "scaling.tf", "variables.tf",
    "versions.tf",
)  # fmt: skip
FILES = (MAIN, VALUES, *(f"{MODULE}/{name}" for name in _PARTS), "README.md")


def render(plan: Plan, catalog: Catalog) -> tuple[RenderedFile, ...]:
    source = data_folder("infra/terraform")
    # The example calls the module above it; here its copy is beside the root module.
    example = (source / "examples" / "values" / MAIN).read_text("utf-8")
    root_module = re.sub(r'source = "\.\./\.\.".*', f'source = "./{MODULE}"', example, count=1)
    parts = ("terraform",) if plan.scaling is None else ("terraform", "terraform-scaling")
    return (
        RenderedFile(MAIN, root_module.encode()),
        json_file(VALUES, values(plan, "terraform")),
        *(RenderedFile(f"{MODULE}/{name}", (source / name).read_bytes()) for name in _PARTS),
        readme(plan, catalog, *parts),
    )


def unsupported(plan: Plan) -> str:
    """A plan with copies, and a lifecycle rule of a bucket."""
    if plan.copies is not None:
        return (
            "hashicorp/aws has no resource for inference components, which copies are; with "
            "--copies 1 it can express the plan, and infra/terraform/examples/copies applies the "
            "stack of cloudformation"
        )
    return not_in_templates(plan)
