"""Writes files of the catalogue: the tables of ``catalog refresh``, and the entry of a new target.

The tables are files of their own, beside those written by hand.
``images.yaml`` updates what ``runtimes.yaml`` says of images, ``prices.yaml`` the prices of
``instances.yaml``. No comment has to survive in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import BaseModel

from peagle.catalog.documents import Location, catalog_error, display_path, dotted, plain_value
from peagle.catalog.loading import validate_file
from peagle.catalog.schema import Target
from peagle.catalog.tables import Image, ImageTable, InstanceTable, PriceTable, RuntimeTable
from peagle.errors import UserError
from peagle.store import replacing
from peagle.text import sanitize


@dataclass(frozen=True)
class Tables:
    """The two tables that a refresh updates."""

    runtimes: RuntimeTable
    instances: InstanceTable


def new_texts(before: Tables, after: Tables) -> dict[str, str]:
    """The files to write: name -> text."""
    texts: dict[str, str] = {}
    if after.runtimes != before.runtimes:
        table = after.runtimes
        images = tuple(
            Image(**{name: getattr(runtime, name) for name in Image.model_fields})
            for runtime in table.runtimes
        )
        texts["images.yaml"] = _text(
            ImageTable(
                checked=table.checked, source=table.source, accounts=table.accounts, images=images
            ),
            [_REFRESHED],
        )
    if after.instances != before.instances:
        instances = after.instances.instances
        prices = {instance.type: instance.prices for instance in instances if instance.prices}
        texts["prices.yaml"] = _text(
            PriceTable(checked=after.instances.checked, prices=prices), [_REFRESHED]
        )
    return texts


_REFRESHED = "Written by `peagle catalog refresh`, which replaces this file."


class _Dumper(yaml.SafeDumper):
    """Quotes text that the catalogue's reader, unlike YAML 1.1, would take for a number."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        style = None if plain_value(text) == text else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _Dumper.represent_text)


def _text(content: BaseModel, comments: Iterable[str]) -> str:
    data = content.model_dump(mode="json", exclude_defaults=True)
    text = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return "".join(f"# {sanitize(comment)}\n" for comment in comments) + text


def write_texts(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write the files ``texts`` (name -> text), so that a reader sees the old or the new ones.

    Returns their paths. Raises UserError if the folder or a file in it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as files:  # the files are replaced once all of them are complete on disk
            for name, text in texts.items():
                temporary = files.enter_context(replacing(folder / name))
                temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"the catalogue in {display_path(folder)} cannot be written: {error.strerror}",
            "write to a folder of your own with --to DIR, and specify it with --catalog",
            code="not-writable",
        ) from error
    return [folder / name for name in texts]


def entry_text(target: Target, unknown: Mapping[Location, str], file: Path) -> str:
    """The file of ``target`` at ``file``, which is not written.

    ``unknown`` says of values why they are not known, in comments at the beginning. Raises
    CatalogError for an entry that the catalogue would not load from that file.
    """
    text = _text(target, (f"unknown: {dotted(key)}, {why}" for key, why in unknown.items()))
    _, problems = validate_file(file, Target, text)
    if problems:
        raise catalog_error(problems)
    return text
