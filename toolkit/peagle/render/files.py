"""The files of a format: YAML, JSON, text, and the README; and the folder they are written to."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from peagle.catalog.schema import Catalog
from peagle.catalog.tables import domain
from peagle.errors import UserError, command_line
from peagle.options import select_file_keys
from peagle.planning.operation import COPIES_BEFORE_SECONDS, ends_after
from peagle.planning.plan import Plan, price_origin
from peagle.render.requests import (
    command_options,
    component_path,
    folders,
    openai_base_url,
    plan_arguments,
)
from peagle.text import format_duration, format_usd, sanitize

PLAN = "plan.json"
"""The plan file of every rendered folder, which `peagle drift` and `prove` read."""


@dataclass(frozen=True)
class RenderedFile:
    """A rendered file: its path below the output folder, and its content."""

    path: str
    content: bytes


def template(name: str) -> str:
    """A text of the folder ``templates``; ``str.format`` fills it in."""
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


class PlainDumper(yaml.SafeDumper):
    """Without anchors, which some tools do not support."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class QuotingDumper(PlainDumper):
    """Quotes what a parser of YAML in Go reads as another type: ``1e3``, ``0o7``, ``y``."""


_PLAIN = re.compile(r"(--|/)?[A-Za-z][^\n]+", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "'" if re.compile(r"[ -~]+").fullmatch(text) else '"'
    plain = style == "'" and _PLAIN.fullmatch(text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, None if plain else style)


QuotingDumper.add_representer(str, _string)


def yaml_text(
    documents: Iterable[Any],
    heading: Iterable[str],
    dumper: type[yaml.SafeDumper] = QuotingDumper,
    allow_unicode: bool = True,
) -> str:
    """YAML, keys in the order given, below comments."""
    comment = "".join(f"# {sanitize(line)}\n" for line in heading)
    body = yaml.dump_all(
        documents, Dumper=dumper, sort_keys=False, allow_unicode=allow_unicode, width=100_000
    )
    return f"{comment}{body}"


def json_file(path: str, document: Any) -> RenderedFile:
    """A JSON file, keys in the order given; control characters, which are in strings only, are
    escaped."""
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    return text_file(path, _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def text_file(path: str, text: str) -> RenderedFile:
    """A text file, without control characters other than tabs and ends of lines."""
    return RenderedFile(path, _CONTROL.sub("", text).encode())


def readme(plan: Plan, catalog: Catalog, *parts: str, **values: object) -> RenderedFile:
    """``README.md`` of these templates, filled in with the plan's values, and with the format's.
    Commands name the folder of the user's own catalogue DIR: its path is that of one machine."""
    uploads, key = folders(plan), plan.company.kms_key
    encrypted = f" --sse aws:kms --sse-kms-key-id {shlex.quote(key)}" if key else ""
    sync = "".join(
        f"aws s3 sync {folder.part.upper()}_FOLDER s3://BUCKET/{folder.prefix}{encrypted}"
        f"  # {sanitize(folder.described)}\n"
        for folder in uploads
    )
    price, origin = plan.price_per_hour_usd, price_origin(plan)
    facts: dict[str, object] = {
        "name": plan.name,
        "pair": sanitize(plan.pair),
        "count": plan.instance_count,
        "instance_type": plan.instance_type,
        "region": plan.region,
        "domain": domain(plan.region),
        "peagle": "peagle --catalog DIR" if catalog.is_extended else "peagle",
        "words": command_line(plan_arguments(plan)),
        "built": command_line(plan_arguments(plan, "--resource-tag")),
        "price": f", for {format_usd(price)} an hour ({origin})" if price is not None
        else " (price unknown)",
        "upload": f"\nFirst copy the weights to your bucket:\n\n```\n{sync}```\n" if sync else "",
        "registry": plan.runtime.image.partition("/")[0],
        "vllm": plan.runtime.vllm,
        "bucket_parameter": " ModelBucket=BUCKET" if uploads else "",
        "bucket_context": " --parameters ModelBucket=BUCKET" if uploads else "",
        "bucket_variable": " -var model_bucket=BUCKET" if uploads else "",
        "minutes": plan.startup_timeout_seconds // 60,
        "body": request_example(plan),
        "model": sanitize(plan.target.id),
        "url": openai_base_url(plan.region, plan.name, component_path(plan)),
        "cli": f"  --inference-component-name {plan.name} \\\n" if plan.copies else "",
        "python": f'InferenceComponentName="{plan.name}", ' if plan.copies else "",
        **dict.fromkeys(("end_parameter", "end_context", "end_variable", "ends"), ""),
    }  # fmt: skip
    if (seconds := ends_after(plan)) is not None:
        moment, copies = _in_seconds(seconds), ""
        if plan.copies:
            earlier = max(60, seconds - COPIES_BEFORE_SECONDS)
            copies = f" \\\n  CopiesEndAt={_in_seconds(earlier)}"
        facts |= {
            "end_parameter": f" \\\n  EndsAt={moment}{copies} --capabilities CAPABILITY_IAM",
            "end_context": f" \\\n  --parameters EndsAt={moment}",
            "end_variable": f" \\\n  -var ends_at={moment}",
            "ends": template("ends.md").format(length=format_duration(seconds)),
        }
    facts |= {part: template(f"{part}.md").format(**facts) for part in ("calling", "proving")}
    text = "".join(template(f"{part}.md") for part in parts).format(**facts | values)
    if keys := select_file_keys(command_options(plan)):  # without which commands make another plan
        plain = {name: [*value] if isinstance(value, tuple) else value
                 for name, value in keys.items()}  # fmt: skip
        shown = yaml.safe_dump(plain, sort_keys=False)
        text += f"\nThe commands need these keys of `peagle.yaml` too:\n\n```yaml\n{shown}```\n"
    return text_file("README.md", text)


def request_example(plan: Plan, **more: str) -> str:
    """The body of a short request, as JSON; ``more`` are further keys."""
    content = (
        {"messages": [{"role": "user", "content": "Hello"}]}
        if plan.proof.chat
        else {"prompt": "Hello"}
    )
    return json.dumps({**more, **content, "max_tokens": 64})


def _in_seconds(seconds: int) -> str:
    """The moment so many seconds from now, as the shell computes it: with the ``date`` of Linux, or
    that of macOS and BSD, where -d is another option."""
    linux = f'date -u -d "+{seconds} seconds" +%FT%T 2>/dev/null'
    return f'"$({linux} || date -u -v+{seconds}S +%FT%T)"'


def write_folder(folder: Path, files: Iterable[RenderedFile], force: bool = False) -> None:
    """Write the files below ``folder``. Raises UserError for a folder that is not empty, unless
    ``force``: then files of these names are replaced, and others are kept."""
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise UserError(
            f"the folder {folder} is not empty",
            "use a different folder, or add --force",
            code="folder-not-empty",
        )
    try:
        for file in files:
            path = folder / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.content)
            path.chmod(0o644)
    except OSError as error:
        message = f"{folder} cannot be written: {error.strerror}"
        raise UserError(message, "check the path", "not-writable") from error
