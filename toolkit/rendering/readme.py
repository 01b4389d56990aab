"""The README beside a template: what it makes, what it costs, what to do first."""

from __future__ import annotations

from toolkit.planning.models import Plan
from toolkit.rendering.models import RenderedFile
from toolkit.rendering.text import text_file
from toolkit.rendering.uploads import folders


def readme(plan: Plan, form: str) -> RenderedFile:
    """``README.md`` from a form with the plan's facts in braces."""
    facts = {
        "name": plan.name,
        "pair": plan.pair,
        "count": plan.instance_count,
        "instance_type": plan.instance_type,
        "region": plan.region,
        "price": _price(plan),
        "upload": _upload(plan),
        "image": plan.runtime.image,
        "registry": plan.runtime.image.partition("/")[0],
        "vllm": plan.runtime.vllm,
        "bucket_parameter": " ModelBucket=BUCKET" if folders(plan) else "",
        "bucket_variable": " -var model_bucket=BUCKET" if folders(plan) else "",
        "bucket_option": " --bucket BUCKET" if folders(plan) else "",
        "folder_options": "".join(f" --{f.part} FOLDER" for f in folders(plan)),
        "folders": _folders(plan),
        "minutes": plan.startup_timeout_seconds // 60,
    }
    return text_file("README.md", form.format(**facts))


def _price(plan: Plan) -> str:
    if plan.price_per_hour_usd is None:
        return ", at a price that the catalogue does not know"
    return f", for ${plan.price_per_hour_usd:.2f} an hour (list price of {plan.price_date})"


def _upload(plan: Plan) -> str:
    """What must be copied to the bucket first."""
    if not folders(plan):
        return ""
    lines = ["", "First copy the weights to your bucket:", "", "```"]
    for folder in folders(plan):
        name = f"{folder.part.upper()}_FOLDER"
        lines += [f"aws s3 sync {name} s3://BUCKET/{folder.prefix}  # {folder.described}"]
    return "\n".join([*lines, "```", ""])


def _folders(plan: Plan) -> str:
    """What the folders on the command line must hold."""
    if not folders(plan):
        return ""
    lines = [f"- `--{folder.part}`: {folder.described}" for folder in folders(plan)]
    return "\n".join(["", "The folders are", "", *lines, ""])
