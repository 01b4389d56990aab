"""Open files, and read JSON strictly and up to a size.

``json.loads`` accepts NaN, keeps the last of two equal names, and raises RecursionError or a bare
ValueError for deep nesting and long numbers. Here each of these raises InvalidJson. Only regular
files are read: opening a pipe waits for a writer, and ``/dev/zero`` never ends.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections import Counter
from io import BufferedReader
from math import isfinite
from pathlib import Path
from typing import Any

LIMIT = 8 << 20
"""Bytes of a document."""


class InvalidJson(ValueError):
    """A refused document, named ``what``; ``why`` completes the sentence ("is not UTF-8")."""

    def __init__(self, what: str, why: str, where: str = "") -> None:
        self.why = why
        super().__init__(f"{what} {why}{where}")


def read(data: bytes | str, what: str, limit: int = LIMIT, constants: bool = False) -> Any:
    """The document in ``data``, which messages call ``what``. Raises InvalidJson, and nothing else:
    for text that is not JSON or not UTF-8, more bytes than ``limit``, NaN and Infinity (also
    a number too large for a float), a duplicate name in an object, and half of a surrogate pair,
    which cannot be encoded as UTF-8."""
    try:
        raw = data.encode() if isinstance(data, str) else data
        text = raw.decode()
    except UnicodeError:
        raise InvalidJson(what, "is not UTF-8") from None
    if len(raw) > limit:
        raise InvalidJson(what, f"is longer than {limit:,} bytes")
    try:
        document = json.loads(
            text,
            parse_float=_finite,
            parse_constant=float if constants else _finite,
            object_pairs_hook=_unique,
        )
        if b"\\u" in raw:
            json.dumps(document, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        where = f" (line {error.lineno}, column {error.colno})"
        raise InvalidJson(what, f"is not valid JSON: {error.msg}", where) from None
    except UnicodeEncodeError:
        raise InvalidJson(what, "has half of a surrogate pair") from None
    except (ValueError, RecursionError) as error:
        raise InvalidJson(what, f"cannot be read: {error}") from None
    return document


def _finite(number: str) -> float:
    if not isfinite(value := float(number)):
        raise ValueError(f"{number} is no number of JSON, or too large")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"it has {ascii(twice)[:80]} twice in one object")
    return members


def open_regular(file: Path) -> BufferedReader:
    """Open a regular file for reading. Raises OSError, also for anything else."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "Not a regular file", str(file))
    return os.fdopen(descriptor, "rb")


def read_regular(file: Path, limit: int = LIMIT) -> bytes:
    """The content of a regular file of at most ``limit`` bytes. Raises OSError."""
    with open_regular(file) as stream:
        content = stream.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"More than {limit:,} bytes", str(file))
    return content


def read_file(file: Path, limit: int = LIMIT) -> Any:
    """The document in a regular file of at most ``limit`` bytes. Raises InvalidJson,
    OSError."""
    return read(read_regular(file, limit), str(file), limit)
