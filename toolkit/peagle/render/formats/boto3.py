"""The plan as one Python file that needs only boto3.

The file is ``templates/deploy.py.txt`` with the plan's requests inserted as Python literals.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from peagle.catalog.schema import Catalog
from peagle.planning.plan import Plan
from peagle.render.files import RenderedFile, readme, text_file
from peagle.render.requests import folders, openai_base_url, owned_requests

SCRIPT = "deploy.py"
FILES = (SCRIPT, "README.md")


def render(plan: Plan, catalog: Catalog) -> tuple[RenderedFile, ...]:
    return (text_file(SCRIPT, script(plan), executable=True), readme(plan, _HOW_TO))


def script(plan: Plan) -> str:
    model, config, endpoint = (request.parameters for request in owned_requests(plan, "boto3"))
    values = {
        "DESCRIPTION": f"{plan.pair} on {plan.instance_type} in {plan.region}",
        "REGION": plan.region,
        "MODEL": model,
        "CONFIG": config,
        "ENDPOINT": endpoint,
        "OPENAI_BASE_URL": openai_base_url(plan.region, plan.name),
        "UPLOADS": {folder.part: folder.prefix for folder in folders(plan)},
    }
    template = files("peagle.render") / "templates" / "deploy.py.txt"
    # Split at the placeholders first, so that a value that looks like one is left alone.
    pieces = template.read_text(encoding="utf-8").split("@")
    return "".join(_literal(values[piece]) if piece in values else piece for piece in pieces)


def _literal(value: Any) -> str:
    """A Python literal. Requests contain strings and numbers only, for which JSON without escaped
    surrogate pairs is also Python."""
    return json.dumps(value, indent=4, ensure_ascii=False)


_HOW_TO = """\
# {name}: boto3

`deploy.py` deploys {pair} on {count} {instance_type} in {region}{price}.

```
pip install boto3
python deploy.py --role ROLE_ARN{bucket_option}{folder_options}
python deploy.py --delete
```
{folders}
The endpoint takes up to {minutes} minutes to start.
{calling}{proving}"""
