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
        readme(plan, catalog, _HOW_TO),
    )


def unsupported(plan: Plan) -> str:
    """What CloudFormation cannot express, and a plan with copies."""
    if plan.copies is not None:
        return "the construct has no inference component, which --copies needs"
    return without_cloudformation(plan)


_HOW_TO = """\
# {name}: CDK

The app deploys {pair} on {count} {instance_type} in {region}{price}.
`values.json` has the plan, and `PeagleEndpoint` in `peagle_endpoint.py` reads it; use the construct
in a stack of your own if you have one. To change the plan, render it again: only `values.json`
changes.
{upload}
```
pip install -r requirements.txt
npx aws-cdk deploy --parameters ExecutionRoleArn=ROLE_ARN{bucket_context}{end_context}
```
{ends}
The endpoint takes up to {minutes} minutes to start. Remove everything with `npx aws-cdk destroy`.
{calling}{proving}"""
