"""Links in a folder whose files are handed on: to S3, or into an image.

What is handed on must lie in the folder that was named. A link out of it would publish a file that
nobody meant, and one to nothing would be missing where the copy is used.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from toolkit.errors import UserError


def homes_of(folder: Path) -> tuple[Path, ...]:
    """Where the links of a folder may lead to: the folder itself, and beside a snapshot of the
    hub's cache its ``blobs/``, where the cache keeps contents."""
    home = folder.resolve()
    if home.parent.name != "snapshots":
        return (home,)
    return home, home.parents[1] / "blobs"


def followed(path: Path, homes: Sequence[Path]) -> Path:
    """The file or folder that ``path`` is; what it leads to, if it is a link.

    Raises UserError for a link to nothing, and for one that leads out of ``homes``.
    """
    if not path.is_symlink():
        return path
    real = Path(os.path.realpath(path))
    if not any(real.is_relative_to(home) for home in homes):
        raise UserError(f"{path} is a link that leads out of its folder, to {real}",
                        "copy the file there")  # fmt: skip
    if not real.exists():
        raise UserError(f"{path} is a link to nothing", "copy the file there, or remove the link")
    return real


def check_links(folder: Path) -> None:
    """Raise UserError if a link at the folder's top level leads out of it or to nothing. Of a
    folder that cannot be read nothing is said: who reads it does."""
    try:
        paths = sorted(folder.iterdir())
    except OSError:
        return
    homes = homes_of(folder)
    for path in paths:
        followed(path, homes)
