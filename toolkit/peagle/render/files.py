"""The files that formats write: YAML, JSON, text, and the README with the plan's facts."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Any

import yaml

from peagle.catalog.tables import domain
from peagle.planning.plan import Plan, price_origin
from peagle.render.requests import folders, openai_base_url, plan_arguments
from peagle.text import format_usd


@dataclass(frozen=True)
class RenderedFile:
    """A rendered file: its path below the output folder, and its content."""

    path: str
    content: bytes
    executable: bool = False


class _Plain(yaml.SafeDumper):
    """Without anchors, which some tools do not support."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def yaml_file(path: str, document: Any, heading: str) -> RenderedFile:
    """A YAML file, keys in the order given, below a comment."""
    body = yaml.dump(document, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=100_000)
    return text_file(path, f"# {heading}\n{body}")


def json_file(path: str, document: Any) -> RenderedFile:
    """A JSON file, keys in the order given."""
    return text_file(path, json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def text_file(path: str, text: str, executable: bool = False) -> RenderedFile:
    return RenderedFile(path, text.encode(), executable)


def readme(plan: Plan, form: str) -> RenderedFile:
    """``README.md`` from a form filled in with the plan's values."""
    facts = {
        "name": plan.name,
        "pair": plan.pair,
        "count": plan.instance_count,
        "instance_type": plan.instance_type,
        "region": plan.region,
        "domain": domain(plan.region),
        "words": shlex.join(plan_arguments(plan)),
        "calling": _calling(plan),
        "proving": _PROVING.format(name=plan.name, region=plan.region),
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


def _calling(plan: Plan) -> str:
    """How to call the endpoint with the AWS CLI, boto3 and OpenAI clients."""
    body = json.dumps(
        {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 64}
        if plan.proof.chat
        else {"prompt": "Hello", "max_tokens": 64}
    )
    return _CALLING.format(
        name=plan.name,
        region=plan.region,
        body=body,
        model=plan.target.id,
        url=openai_base_url(plan.region, plan.name),
    )


_CALLING = """
## Calling it

```
aws sagemaker-runtime invoke-endpoint --region {region} --endpoint-name {name} \\
  --content-type application/json --cli-binary-format raw-in-base64-out \\
  --body '{body}' answer.json
```

In Python: `boto3.client("sagemaker-runtime", region_name="{region}").invoke_endpoint(
EndpointName="{name}", ContentType="application/json", Body=...)["Body"].read()`.

For OpenAI clients, set the base URL to `{url}`, the model to
`{model}`, and the key to a SageMaker bearer token (valid for at most 12 hours):
`OPENAI_API_KEY="$(peagle token {name} --region {region})"`.
"""


_PROVING = """
## Proving it

`peagle prove {name} --region {region}` measures whether drafts are accepted, and exits with 3 if
not. `peagle list`, `status` and `logs` find the endpoint by its tags. `peagle deploy`, `rollback`
and `destroy` leave it to its owner until `peagle adopt {name}`.
"""


def _price(plan: Plan) -> str:
    if plan.price_per_hour_usd is None:
        return " (price unknown)"
    return f", for {format_usd(plan.price_per_hour_usd)} an hour ({price_origin(plan)})"


def _upload(plan: Plan) -> str:
    """The uploads that come first; empty without any."""
    if not folders(plan):
        return ""
    lines = ["", "First copy the weights to your bucket:", "", "```"]
    for folder in folders(plan):
        name = f"{folder.part.upper()}_FOLDER"
        lines += [f"aws s3 sync {name} s3://BUCKET/{folder.prefix}  # {folder.described}"]
    return "\n".join([*lines, "```", ""])


def _folders(plan: Plan) -> str:
    """The contents of the folders on the command line; empty without any."""
    if not folders(plan):
        return ""
    lines = [f"- `--{folder.part}`: {folder.described}" for folder in folders(plan)]
    return "\n".join(["", "Folders:", "", *lines, ""])
