"""``peagle catalog check``: whether the catalogue and the weights beside it agree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from toolkit.catalog import load_catalog
from toolkit.catalog.loading import examine, target_files
from toolkit.catalog.models import Catalog, Target
from toolkit.catalog.places import shown
from toolkit.catalog.problems import Problem
from toolkit.checkpoints import FolderSource, read_checkpoint
from toolkit.checks import check, make_case
from toolkit.errors import CatalogError, CheckpointError

_RULE = "target-differs"
_LOCAL = b"weights: ./"


def contradictions(path: Path | None, own: Path | None) -> list[Problem]:
    """What a target's file, or every one of the catalogue, says against its own config.json.

    Only of weights in a folder beside the file: nothing is fetched. What is wrong with the file
    itself is told elsewhere.
    """
    files = [path] if path is not None and path.is_file() else target_files(path or own).values()
    try:
        tables = load_catalog()
    except CatalogError:
        return []
    return list(_all(files, tables))


def _all(files: Iterable[Path], tables: Catalog) -> Iterator[Problem]:
    for file in files:
        if file.suffix == ".yaml" and _LOCAL in file.read_bytes():
            target = examine(file, Target)[0]
            if target is not None and (target.weights or "").startswith("./"):
                yield from _of(file, target, tables)


def _of(file: Path, target: Target, tables: Catalog) -> Iterator[Problem]:
    folder = file.parent / str(target.weights)
    try:
        read = read_checkpoint(FolderSource(folder), config_only=True)
        findings = check(make_case(tables, target, None, target_checkpoint=read), only={_RULE})
    except CheckpointError as bad:
        yield Problem(shown(file), None, "weights", bad.message, bad.fix)
        return
    for finding in findings:
        yield Problem(shown(file), None, "architecture", finding.message, finding.fix)
