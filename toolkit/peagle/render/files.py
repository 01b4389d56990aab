"""The files of a format: YAML, JSON, text, and the README; and the folder they are written to."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from peagle.catalog.schema import Catalog
from peagle.catalog.tables import domain
from peagle.errors import UserError, command_line
from peagle.planning.limit import COPIES_BEFORE_SECONDS, ends_after
from peagle.planning.options import keys_of_file
from peagle.planning.plan import Plan, price_origin
from peagle.render.components import component_path
from peagle.render.requests import (
    folders,
    openai_base_url,
    plan_arguments,
    reproduce_options,
)
from peagle.text import format_duration, format_usd, sanitize

PLAN = "plan.json"
"""The plan file of every rendered folder, which `peagle drift` and `prove` read."""


@dataclass(frozen=True)
class RenderedFile:
    """A rendered file: its path below the output folder, and its content."""

    path: str
    content: bytes


class PlainDumper(yaml.SafeDumper):
    """Without anchors, which some tools do not support."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class QuotingDumper(PlainDumper):
    """Quotes what a parser of YAML in Go reads as another type: ``1e3``, ``0o7``, ``y``."""


_PLAIN = re.compile(r"(--|/)?[A-Za-z][^\n]+", re.ASCII)
_PRINTABLE = re.compile(r"[ -~]+")


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "'" if _PRINTABLE.fullmatch(text) else '"'
    plain = style == "'" and _PLAIN.fullmatch(text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, None if plain else style)


QuotingDumper.add_representer(str, _string)


def yaml_file(path: str, document: Any, heading: str) -> RenderedFile:
    """A YAML file, keys in the order given, below a comment."""
    body = yaml.dump(
        document, Dumper=PlainDumper, sort_keys=False, allow_unicode=True, width=100_000
    )
    return text_file(path, f"# {sanitize(heading)}\n{body}")


def json_file(path: str, document: Any) -> RenderedFile:
    """A JSON file, keys in the order given; control characters, which are in strings only, are
    escaped."""
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    return text_file(path, _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def text_file(path: str, text: str) -> RenderedFile:
    """A text file, without control characters other than tabs and ends of lines."""
    return RenderedFile(path, _CONTROL.sub("", text).encode())


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def readme(plan: Plan, catalog: Catalog, form: str, **own: object) -> RenderedFile:
    """``README.md`` from a form filled in with the plan's values, and with the format's ``own``.
    Commands name the folder of the user's own catalogue DIR: its path is that of one machine."""
    facts = {
        "name": plan.name,
        "pair": sanitize(plan.pair),
        "count": plan.instance_count,
        "instance_type": plan.instance_type,
        "region": plan.region,
        "domain": domain(plan.region),
        "peagle": "peagle --catalog DIR" if catalog.is_extended else "peagle",
        "words": command_line(plan_arguments(plan)),
        "built": command_line(plan_arguments(plan, "--resource-tag")),
        "calling": _calling(plan),
        "proving": _PROVING.format(name=plan.name, region=plan.region),
        "price": _price(plan),
        "upload": _upload(plan),
        "image": plan.runtime.image,
        "registry": plan.runtime.image.partition("/")[0],
        "vllm": plan.runtime.vllm,
        "bucket_parameter": " ModelBucket=BUCKET" if folders(plan) else "",
        "bucket_context": " --parameters ModelBucket=BUCKET" if folders(plan) else "",
        "bucket_variable": " -var model_bucket=BUCKET" if folders(plan) else "",
        "bucket_option": " --bucket BUCKET" if folders(plan) else "",
        "folder_options": "".join(f" --{f.part} FOLDER" for f in folders(plan)),
        "folders": _folders(plan),
        **_ending(plan),
        "minutes": plan.startup_timeout_seconds // 60,
        **own,
    }
    return text_file("README.md", form.format(**facts) + _keys(plan) + _unpinned(plan))


def _keys(plan: Plan) -> str:
    """The keys of the project file without which the commands make another plan."""
    keys = keys_of_file(reproduce_options(plan))
    if not keys:
        return ""
    text = yaml.safe_dump({name: _plain(value) for name, value in keys.items()}, sort_keys=False)
    return f"\nThe commands need these keys of `peagle.yaml` too:\n\n```yaml\n{text}```\n"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _unpinned(plan: Plan) -> str:
    """How to pin the commits and the digest that the plan does not know; empty if it knows all."""
    models = (plan.target, plan.drafter)
    moving = [
        (one, model)
        for one, model in zip(("target", "head"), models, strict=True)
        if model
        and model.weights
        and model.weights.kind == "hub"
        and not _COMMIT.fullmatch(model.weights.revision or "")
    ]
    lines = [
        f"- The {part} {sanitize(model.id)} is that of the branch "
        f"`{sanitize(model.weights.revision or 'main')}`: {_PIN[part]}"
        for part, model in moving
        if model.weights
    ]
    if "@sha256:" not in plan.runtime.image:
        lines.append(f"- The image is named by its tag: {_PIN['image']}")
    return "\n".join(["", "## Not pinned", "", *lines, ""]) if lines else ""


_COMMIT = re.compile(r"[0-9a-f]{40}")
_PIN = {
    "head": "render again with `--drafter ID@COMMIT`.",
    "target": "name it `ID@COMMIT`, and render again.",
    "image": "`peagle catalog refresh --digests` finds its digest; or give `--image IMAGE@DIGEST`.",
}


def request_example(plan: Plan, **more: str) -> str:
    """The body of a short request, as JSON; ``more`` are further keys."""
    content = (
        {"messages": [{"role": "user", "content": "Hello"}]}
        if plan.proof.chat
        else {"prompt": "Hello"}
    )
    return json.dumps({**more, **content, "max_tokens": 64})


def _calling(plan: Plan) -> str:
    """How to call the endpoint with the AWS CLI, boto3 and OpenAI clients."""
    return _CALLING.format(
        name=plan.name,
        region=plan.region,
        body=request_example(plan),
        model=sanitize(plan.target.id),
        url=openai_base_url(plan.region, plan.name, component_path(plan)),
        cli=_CLI_COMPONENT.format(name=plan.name) if plan.copies else "",
        python=f'InferenceComponentName="{plan.name}", ' if plan.copies else "",
    )


_CLI_COMPONENT = "  --inference-component-name {name} \\\n"

_CALLING = """
## Calling it

```
aws sagemaker-runtime invoke-endpoint --region {region} --endpoint-name {name} \\
{cli}  --content-type application/json --cli-binary-format raw-in-base64-out \\
  --body '{body}' answer.json
```

In Python: `boto3.client("sagemaker-runtime", region_name="{region}").invoke_endpoint(
EndpointName="{name}", {python}ContentType="application/json", Body=...)["Body"].read()`.

For OpenAI clients, set the base URL to `{url}`, the model to
`{model}`, and the key to a SageMaker bearer token (valid for at most 12 hours):
`OPENAI_API_KEY="$(peagle token {name} --region {region})"`.
"""


_PROVING = """
## Proving it

`peagle prove {name} --region {region}` measures whether drafts are accepted, and exits with 3 if
not. `peagle drift plan.json` compares the endpoint with the plan in this folder. `peagle list`,
`status` and `logs` find the endpoint by its tags. `peagle deploy`, `rollback`
and `destroy` leave it to its owner.
"""


def _price(plan: Plan) -> str:
    if plan.price_per_hour_usd is None:
        return " (price unknown)"
    return f", for {format_usd(plan.price_per_hour_usd)} an hour ({price_origin(plan)})"


def _ending(plan: Plan) -> dict[str, str]:
    """How the end time is given, and what it does; empty without one."""
    seconds = ends_after(plan)
    if seconds is None:
        return dict.fromkeys(
            ("end_parameter", "end_context", "end_variable", "end_option", "ends"), ""
        )
    moment = _in_seconds(seconds)
    copies = ""
    if plan.copies:
        copies = f" \\\n  CopiesEndAt={_in_seconds(max(60, seconds - COPIES_BEFORE_SECONDS))}"
    return {
        "end_parameter": f" \\\n  EndsAt={moment}{copies} --capabilities CAPABILITY_IAM",
        "end_context": f" \\\n  --parameters EndsAt={moment}",
        "end_variable": f" \\\n  -var ends_at={moment}",
        "end_option": f" --ends-at {moment}",
        "ends": _ENDS.format(length=format_duration(seconds), name=plan.name),
    }


def _in_seconds(seconds: int) -> str:
    """The moment so many seconds from now, as the shell computes it: with the ``date`` of Linux, or
    that of macOS and BSD, where -d is another option."""
    linux = f'date -u -d "+{seconds} seconds" +%FT%T 2>/dev/null'
    return f'"$({linux} || date -u -v+{seconds}S +%FT%T)"'


_ENDS = """
EventBridge Scheduler deletes the endpoint at that time, {length} from now; applying again
with another time moves it. What remains costs nothing but the storage of weights.
"""


def _upload(plan: Plan) -> str:
    """The uploads that come first; empty without any."""
    if not folders(plan):
        return ""
    lines = ["", "First copy the weights to your bucket:", "", "```"]
    for folder in folders(plan):
        name = f"{folder.part.upper()}_FOLDER"
        command = f"aws s3 sync {name} s3://BUCKET/{folder.prefix}"
        lines += [f"{command}{_encrypted(plan)}  # {sanitize(folder.described)}"]
    return "\n".join([*lines, "```", ""])


def _encrypted(plan: Plan) -> str:
    """The options with which the AWS CLI encrypts uploads with the plan's key."""
    key = plan.company.kms_key
    return f" --sse aws:kms --sse-kms-key-id {shlex.quote(key)}" if key else ""


def _folders(plan: Plan) -> str:
    """The contents of the folders on the command line; empty without any."""
    if not folders(plan):
        return ""
    lines = [f"- `--{folder.part}`: {sanitize(folder.described)}" for folder in folders(plan)]
    return "\n".join(["", "Folders:", "", *lines, ""])


def write_folder(folder: Path, files: Iterable[RenderedFile], force: bool = False) -> None:
    """Write the files below ``folder``, all or none.

    Raises UserError for a folder that is not empty, unless ``force``: then files of these names
    are replaced, and others are kept.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(
            f"{folder} is a file", "use a different folder with -o", code="output-not-a-folder"
        )
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise UserError(
            f"the folder {folder} is not empty",
            "use a different folder, or add --force",
            code="folder-not-empty",
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as beside:
            draft = Path(beside) / "files"
            for file in files:
                _write(draft / file.path, file)
            _put_in_place(draft, folder)
    except OSError as error:
        message = f"{folder} cannot be written: {error.strerror}"
        raise UserError(message, "check the path", "not-writable") from error


def _write(path: Path, file: RenderedFile) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(file.content)
    path.chmod(0o644)


def _put_in_place(draft: Path, folder: Path) -> None:
    if not folder.is_dir() or not any(folder.iterdir()):
        # Renaming onto an empty folder is atomic.
        draft.replace(folder)
        return
    for source in sorted(path for path in draft.rglob("*") if path.is_file()):
        goal = folder / source.relative_to(draft)
        goal.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(source, goal)
