"""The plan as one Python file that needs boto3 and nothing else.

The file is ``templates/deploy.py.txt`` with the plan's requests written in as Python literals.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from peagle.planning.plan import Plan
from peagle.render.files import RenderedFile, readme, text_file
from peagle.render.requests import folders, openai_base_url, requests

SCRIPT = "deploy.py"


def render(plan: Plan) -> tuple[RenderedFile, ...]:
    """``deploy.py`` and how to use it."""
    return (text_file(SCRIPT, script(plan), executable=True), readme(plan, _HOW_TO))


def script(plan: Plan) -> str:
    """The text of ``deploy.py``."""
    model, config, endpoint = (request.parameters for request in requests(plan))
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
    # Cut at the marks, so that a value which looks like a mark stays what it is.
    pieces = template.read_text(encoding="utf-8").split("@")
    marks = [_literal(values[piece]) if piece in values else piece for piece in pieces]
    return "".join(marks)


def _literal(value: Any) -> str:
    """Python for requests, which hold texts and numbers only: there JSON and Python agree, as long
    as characters are not written as pairs of surrogates."""
    return json.dumps(value, indent=4, ensure_ascii=False)


_HOW_TO = """\
# {name}: boto3

`deploy.py` puts {pair} on {count} {instance_type} in {region}{price}.

```
pip install boto3
python deploy.py --role ROLE_ARN{bucket_option}{folder_options}
python deploy.py --delete
```
{folders}
The endpoint takes up to {minutes} minutes to start.
{calling}"""
