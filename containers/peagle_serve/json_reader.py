"""Open untrusted files, and read JSON strictly and within limits.

``json.loads`` accepts NaN, keeps the last of two equal names, raises RecursionError or a bare
ValueError for deep nesting or long numbers, and builds gigabytes from a few bytes for each of a
million empty lists. Here each of these raises InvalidJson, which says what is wrong and where.
Depth and number of values are counted on the text before parsing, at about 200 MB per second.

Only regular files are read: opening a pipe waits for a writer, and a device such as ``/dev/zero``
never ends.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from io import BufferedReader
from itertools import accumulate
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, NoReturn


class Limits(NamedTuple):
    """``size`` in bytes, ``depth`` of nested arrays and objects, ``values``: elements and members
    of all of them, ``digits``: characters of a number. ``constants`` admits NaN and Infinity, which
    transformers writes into config.json. A million values take up to 150 MB and a second."""

    size: int = 8 << 20
    depth: int = 64
    values: int = 500_000
    digits: int = 100
    constants: bool = False


DEFAULT = Limits()


class InvalidJson(ValueError):
    """A refused document. ``what`` names it, ``why`` completes the sentence, such as
    "is not UTF-8".

    ``offset`` counts characters from 0, ``line`` and ``column`` from 1; ``None`` where unknown.
    ``is_syntax``: the text is not JSON, rather than JSON that the limits or the rules refuse.
    """

    def __init__(
        self, what: str, why: str, text: str = "", offset: int | None = None, syntax: bool = False
    ) -> None:
        self.what, self.why, self.offset, self.is_syntax = what, why, offset, syntax
        self.line = self.column = None if offset is None else 0
        where = ""
        if offset is not None:
            self.line = text.count("\n", 0, offset) + 1
            self.column = offset - text.rfind("\n", 0, offset)
            where = f" (line {self.line}, column {self.column})"
        super().__init__(f"{what} {why}{where}")


class _Violation(Exception):
    """JSON that is refused; ``at`` is the offending text, where it is known."""

    def __init__(self, why: str, at: str = "") -> None:
        self.why, self.at = why, at


def read(data: bytes | str, what: str, *, limits: Limits = DEFAULT) -> Any:
    """The document in ``data``, which messages call ``what``.

    Raises InvalidJson, and nothing else: for text that is not JSON or not UTF-8, a document beyond
    ``limits``, NaN and Infinity (also a number too large for a float), a duplicate name in an
    object, and half of a surrogate pair, which cannot be encoded as UTF-8.
    """
    too_long = InvalidJson(what, f"is longer than {limits.size:,} bytes")
    if len(data) > limits.size:
        raise too_long
    try:
        text = data if isinstance(data, str) else data.decode()
        raw = data.encode() if isinstance(data, str) else data
    except UnicodeError as error:
        unit, at = "character" if isinstance(data, str) else "byte", getattr(error, "start", 0)
        why = f"is not UTF-8 (invalid {unit} at offset {at:,})"
        raise InvalidJson(what, why, syntax=True) from None
    if len(raw) > limits.size:
        raise too_long
    _check_shape(raw, what, limits)

    def whole(number: str) -> int:
        if len(number) > limits.digits:
            raise _Violation(f"has a number of more than {limits.digits} characters", number)
        return int(number)

    def fraction(number: str) -> float:
        if len(number) > limits.digits:
            raise _Violation(f"has a number of more than {limits.digits} characters", number)
        if not isfinite(value := float(number)):
            raise _Violation(f"has the number {number}, which is too large", number)
        return value

    try:
        document = json.loads(
            text,
            parse_int=whole,
            parse_float=fraction,
            parse_constant=float if limits.constants else _refuse_constant,
            object_pairs_hook=_unique,
        )
        if _SURROGATE.search(raw):
            json.dumps(document, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        why = f"is not valid JSON: {error.msg}"
        raise InvalidJson(what, why, text, error.pos, syntax=True) from None
    except _Violation as error:
        offset = text.find(error.at) if error.at else -1
        raise InvalidJson(what, error.why, text, offset if offset >= 0 else None) from None
    except UnicodeEncodeError:
        raise InvalidJson(what, "has half of a surrogate pair") from None
    except (ValueError, RecursionError) as error:
        raise InvalidJson(what, f"cannot be read: {error}") from None
    return document


def read_file(file: Path, limits: Limits = DEFAULT) -> Any:
    """The document in a regular file. Raises InvalidJson, and OSError for a file that is missing,
    unreadable, not regular or larger than the limit."""
    return read(read_regular(file, limits.size), str(file), limits=limits)


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_STRING = re.compile(rb'"[^"]*"?')
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'"[]{},'))
_STEPS = bytes(1 if byte in b"[{" else 255 for byte in range(256))
"""Opening brackets as 1 and closing ones as -1, a signed byte."""


def _check_shape(raw: bytes, what: str, limits: Limits) -> None:
    """Raise InvalidJson for more values or levels than allowed. Up to the first syntax error, where
    the parser stops, this finds the same strings and brackets."""
    if sum(map(raw.count, (b"[", b"{", b","))) <= min(limits.depth, limits.values):
        return
    unescaped = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    structure = unescaped.translate(None, _NOT_STRUCTURE)
    quotes = structure.count(b'"')
    if quotes <= 4 * (limits.values + 1):  # a value has up to two strings, its name and itself
        structure, quotes = _STRING.sub(b"", structure), 0
    if quotes or sum(map(structure.count, (b"[", b"{", b","))) > limits.values:
        raise InvalidJson(what, f"has more than {limits.values:,} values")
    steps = memoryview(structure.translate(_STEPS, b",")).cast("b")
    if max(accumulate(steps), default=0) > limits.depth:
        raise InvalidJson(what, f"is nested more than {limits.depth} levels deep")


def _refuse_constant(name: str) -> NoReturn:
    raise _Violation(f"has {name}, which is not JSON", name)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names: set[str] = set()  # a list would take minutes for as many names as are allowed
        for name, _ in pairs:
            if name in names:
                raise _Violation(f"has {ascii(name)[:80]} twice in one object")
            names.add(name)
    return members


def open_regular(file: Path) -> BufferedReader:
    """Open a regular file for reading. Raises OSError, also for anything else."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "Not a regular file", str(file))
    return os.fdopen(descriptor, "rb")


def read_regular(file: Path, limit: int) -> bytes:
    """The content of a regular file of at most ``limit`` bytes. Raises OSError."""
    with open_regular(file) as stream:
        content = stream.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"More than {limit:,} bytes", str(file))
    return content
