"""Puts rewritten tables in their place: all of them whole, or none."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from toolkit.catalog.loading import examine, table_file
from toolkit.catalog.places import shown
from toolkit.catalog.rewriting import rewritten_instances
from toolkit.catalog.rewriting_runtimes import rewritten_runtimes
from toolkit.catalog.tables import InstanceTable, RuntimeTable
from toolkit.data import data_folder
from toolkit.errors import UserError


@dataclass(frozen=True)
class Tables:
    """The two tables that a refresh writes."""

    runtimes: RuntimeTable
    instances: InstanceTable


def folder_for_tables(chosen: Path | None) -> Path:
    """``chosen``, else the bundled catalogue."""
    return chosen or data_folder("model_catalog")


def refuse_unwritable(folder: Path) -> None:
    """Raises UserError where tables cannot be written, before anybody is asked for them."""
    try:
        existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    except OSError as error:
        raise _cannot_be_made(folder, error) from error
    if not existing.is_dir():
        raise UserError(f"{existing} is not a folder", "name a folder with --to")
    if not os.access(existing, os.W_OK):
        raise UserError(
            f"the catalogue in {shown(folder)} cannot be written",
            "write to a folder of your own with --to DIR, and use it with `peagle --catalog DIR`",
        )


def _cannot_be_made(folder: Path, error: OSError) -> UserError:
    message = f"the catalogue in {shown(folder)} cannot be written: {error.strerror}"
    return UserError(message, "name another folder with --to DIR")


def new_texts(folder: Path, before: Tables, after: Tables) -> dict[str, str]:
    """The files that change, by name, as they should be.

    ``before`` is what was loaded with ``folder`` as the user's own. Raises UserError when a file
    is written in a way in which it cannot be changed in place.
    """
    texts: dict[str, str] = {}
    if before.runtimes != after.runtimes:
        text = table_file("runtimes.yaml", folder).read_text(encoding="utf-8")
        texts["runtimes.yaml"] = rewritten_runtimes(text, before.runtimes, after.runtimes)
        _check("runtimes.yaml", texts["runtimes.yaml"], after.runtimes, folder)
    if before.instances != after.instances:
        text = table_file("instances.yaml", folder).read_text(encoding="utf-8")
        texts["instances.yaml"] = rewritten_instances(text, before.instances, after.instances)
        _check("instances.yaml", texts["instances.yaml"], after.instances, folder)
    return texts


def _check(name: str, text: str, wanted: RuntimeTable | InstanceTable, folder: Path) -> None:
    """What will be written must be read as what was meant."""
    with tempfile.TemporaryDirectory() as place:
        draft = Path(place) / name
        draft.write_text(text, encoding="utf-8")
        found, problems = examine(draft, type(wanted))
    if problems or found is None or _sorted(found) != _sorted(wanted):
        raise UserError(
            f"{shown(folder / name)} is not written in the style of the bundled file, so it "
            "cannot be changed in place",
            "write to another folder with --to DIR",
        )


def _sorted(table: RuntimeTable | InstanceTable) -> RuntimeTable | InstanceTable:
    """A new type stands in the file beside its family, so the order of entries may differ."""
    if isinstance(table, RuntimeTable):
        return table
    ordered = tuple(sorted(table.instances, key=lambda instance: instance.type))
    return table.model_copy(update={"instances": ordered})


def write_texts(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write the files so that each is seen old or new, never half; gives their paths.

    Raises UserError where the folder or a file in it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _written(folder, texts)
    except OSError as error:
        raise _cannot_be_made(folder, error) from error


def _written(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    drafts: list[tuple[Path, Path]] = []
    try:
        for name, text in texts.items():
            path, draft = folder / name, folder / f".{name}.{os.getpid()}"
            drafts.append((draft, path))
            draft.write_text(text, encoding="utf-8")
            if path.exists():
                shutil.copymode(path, draft)
        for draft, path in drafts:
            draft.replace(path)
    finally:
        for draft, _ in drafts:
            draft.unlink(missing_ok=True)
    return [path for _, path in drafts]
