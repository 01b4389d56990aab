"""Files for parsers that read files: below one folder of the process, in memory where there is
memory for files."""

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path


@cache
def _folder(process: int) -> Path:
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else None
    made = Path(tempfile.mkdtemp(prefix="peagle-fuzz-", dir=place))

    def remove() -> None:
        if os.getpid() == process:
            shutil.rmtree(made, ignore_errors=True)

    atexit.register(remove)
    return made


def folder() -> Path:
    """The folder of this process; it is removed at its end."""
    return _folder(os.getpid())


def written(name: str, content: bytes | str) -> Path:
    """A file with that content, in place of the one that the previous input had."""
    path = folder() / name
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True)
    path.write_bytes(
        content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
    )
    return path
