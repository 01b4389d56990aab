"""Writes what a format rendered to a folder."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from peagle.errors import UserError
from peagle.render.files import RenderedFile


def write_folder(folder: Path, files: Iterable[RenderedFile], force: bool = False) -> None:
    """Write the files below ``folder``, all or none.

    Raises UserError for a folder that is not empty, unless ``force``: then files of these names
    are replaced, and others are kept.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file", "use a different folder with -o")
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise UserError(
            f"the folder {folder} is not empty", "use a different folder, or add --force"
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
    path.chmod(0o755 if file.executable else 0o644)


def _put_in_place(draft: Path, folder: Path) -> None:
    if not folder.is_dir() or not any(folder.iterdir()):
        # Renaming onto an empty folder is atomic.
        draft.replace(folder)
        return
    for source in sorted(path for path in draft.rglob("*") if path.is_file()):
        goal = folder / source.relative_to(draft)
        goal.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(source, goal)
