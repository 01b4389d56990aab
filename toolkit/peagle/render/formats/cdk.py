"""The plan as a CDK app in Python: the app, the construct of the endpoint, and the plan's values.

App and construct are the project's own, ``infra/cdk``. All of the plan is in ``values.json``, which
the Terraform module reads too.
"""

from __future__ import annotations

from peagle.catalog.schema import Catalog
from peagle.data import data_folder
from peagle.planning.plan import Plan
from peagle.render.files import RenderedFile, json_file, readme
from peagle.render.formats.cloudformation import unsupported as without_cloudformation
from peagle.render.values import values

VALUES = "values.json"
_OWN = ("app.py", "peagle_endpoint.py", "cdk.json", "requirements.txt")
FILES = (*_OWN, VALUES, "README.md")


def render(plan: Plan, catalog: Catalog) -> tuple[RenderedFile, ...]:
    source = data_folder("infra/cdk")
    return (
        *(RenderedFile(name, (source / name).read_bytes()) for name in _OWN),
        json_file(VALUES, values(plan, "cdk")),
        readme(plan, catalog, "cdk"),
    )


def unsupported(plan: Plan) -> str:
    """What CloudFormation cannot express, and a plan with copies."""
    if plan.copies is not None:
        return "the construct has no inference component, which --copies needs"
    return without_cloudformation(plan)
