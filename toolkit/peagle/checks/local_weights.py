"""Compares the targets of catalogue files with the config.json in the folders beside them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from peagle.case import Checkpoints, build_case
from peagle.catalog.documents import Problem, display_path
from peagle.catalog.loading import target_files, validate_file
from peagle.catalog.schema import Catalog, Target
from peagle.checkpoints import FolderSource, read_checkpoint
from peagle.checks import check
from peagle.errors import CheckpointError

_RULE = "target-differs"
_LOCAL = b"weights: ./"


def check_local_weights(path: Path | None, own: Path | None, tables: Catalog) -> list[Problem]:
    """Differences between targets and the config.json of their weights.

    ``path`` is one target's file or a catalogue folder, by default the catalogue with the folder
    ``own``. Only weights in a folder beside the file are compared, so nothing is downloaded; a file
    that is not valid is left to ``check_catalog``.
    """
    files: Iterable[Path] = target_files(path or own).values()
    if path is not None and path.is_file():
        files = [path] if path.suffix == ".yaml" else []
    return [
        problem
        for file in files
        if _LOCAL in file.read_bytes()
        and (target := validate_file(file, Target)[0]) is not None
        and target.weights.startswith("./")
        for problem in _differences(file, target, tables)
    ]


def _differences(file: Path, target: Target, tables: Catalog) -> Iterator[Problem]:
    folder = file.parent / target.weights
    try:
        checkpoint = read_checkpoint(FolderSource(folder), config_only=True)
        case = build_case(tables, target, None, checkpoints=Checkpoints(checkpoint))
        findings = check(case, only={_RULE})
    except CheckpointError as error:
        yield Problem(display_path(file), None, "weights", error.message, error.fix)
        return
    for finding in findings:
        yield Problem(display_path(file), None, "architecture", finding.message, finding.fix)
