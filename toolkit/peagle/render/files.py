"""What renderers make.

How rendered documents are written.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import yaml


@dataclass(frozen=True)
class Request:
    """One call of the AWS API, as boto3 takes it."""

    service: str
    operation: str
    parameters: dict[str, Any]


@dataclass(frozen=True)
class RenderedFile:
    """A file of a rendering: its path below the output folder, and its bytes."""

    path: str
    content: bytes
    executable: bool = False


class _Plain(yaml.SafeDumper):
    """Without anchors: a template is read by people and by tools that know none."""

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
    """A text file in UTF-8."""
    return RenderedFile(path, text.encode(), executable)
