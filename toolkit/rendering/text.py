"""How rendered documents are written."""

from __future__ import annotations

import json
from typing import Any

import yaml

from toolkit.rendering.models import RenderedFile


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
