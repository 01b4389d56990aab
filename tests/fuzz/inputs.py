"""Strategies of inputs that begin with valid ones and are damaged: by their structure first, so
that most of them pass the first check of a parser, then by their text and by their bytes.

All are made of few draws, so that the long run is limited by the parsers.
"""

import copy
import json
import struct
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

Edit = tuple[int, int, int]
"""Where (modulo what there is), what to do, and with which value."""


def deep(levels: int, opening: Any = list) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value] if opening is list else {"a": value}
    return value


HOSTILE: tuple[Any, ...] = (
    None, "", 0, -1, True, False, [], {}, 1, 2, 0.5, -0.5, "x", [None], [[]], {"": None}, {"a": {}},
    2**31 - 1, -(2**31), 2**53 + 1, 2**63, 2**64, 10**30, -(10**30), 1e308, 1e-320, "0", "-1", "1",
    "1e999", "NaN", "nan", "inf", "true", "null", "[]", "{}", '{"a": 1}', "[1, {}]", "9" * 5000,
    "a" * 300, "a" * 70_000, "\0", "\n", "a\nb", " ", "\ud800", "\udcff", "\u0661\u0662", "\u00b2",
    "\U0001f600", "\x1b[31m", "..", "../../etc/passwd", "/", "//", "a/../b", "s3://", "s3://b/k/",
    "https://[::1", "http://a:99999/", "arn:aws:iam::123456789012:role/x", "ml.g5.xlarge",
    "us-east-1", "%s", "{}{0}", "$(id)", "--flag", "-", "'", '"', "\\", "[" * 3000, '{"a":' * 3000,
    ["a"] * 300, [0] * 300, [{}] * 50, {"a": "b"}, ["x", None, 1, {}, []], [1, 2, 3], "0.28.0",
    [-1, 2**40], {"0": 0}, "2026-01-01T00:00:00Z", "20260101T000000Z", "sha256:" + "0" * 64, "=",
    10**6, 10**9, ["full_attention"] * 3, {"rope_type": "x"}, "mxfp4",
    deep(30), deep(30, dict), deep(200), "\u2028", "\ufeff", "a=b", "a:b", "::", "@", "#", "&", "*",
)  # fmt: skip
TEXTS: tuple[str, ...] = (
    *(value for value in HOSTILE if isinstance(value, str)), "null", "NaN", "Infinity",
    "-Infinity", "1e400", "-0", "0x10", "1_000", "00", "[", "]", "{", "}", ",", ":", '"',
    "\\ud800", '"\\ud800"', "\\u0000", "[" * 60_000, '{"a":' * 20_000, "9" * 20_000, "\r\n",
    "\r", "\n\n", "\t", "data: ", "event: ", "0\r\n\r\n", "ffffffffffffffff\r\n", "-1\r\n",
    "&a [*a, *a]", "*a", "!!python/object:os.system", "<<: *a", "? ", "- ", "---\n", "|\n",
)  # fmt: skip
BYTES: tuple[bytes, ...] = (
    *(text.encode("utf-8", "surrogatepass") for text in TEXTS),
    b"\xff", b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\0" * 16, b"\xff" * 8,
    b"\x1f\x8b", b"\x80\x04", b"PK\x03\x04", (2**63).to_bytes(8, "little"), b"\x00" * 70_000,
)  # fmt: skip
numbers = st.integers(0, 65_535)


def edits(values: int, most: int) -> SearchStrategy[list[Edit]]:
    """At most so many edits, of one draw: many small ones would take longer than the parsers."""

    def make(drawn: bytes) -> list[Edit]:
        each = struct.iter_unpack("<HHH", drawn[1:])
        changes = [(where, what, which % values) for where, what, which in each]
        return changes[: drawn[0] % (most + 1)]

    return st.binary(min_size=1 + 6 * most, max_size=1 + 6 * most).map(make)


def documents(*examples: Any, more: Sequence[Any] = (), most: int = 4) -> SearchStrategy[Any]:
    """Values of JSON: the examples with parts replaced, removed, repeated, exchanged or renamed.
    ``more`` are hostile values of this parser."""
    values = (*HOSTILE, *more, *more, *more)

    def make(example: Any, changes: list[Edit]) -> Any:
        value = copy.deepcopy(example)
        for change in changes:
            value = _edited(value, change, values)
        return value

    return st.builds(make, st.sampled_from(examples), edits(len(values), most))


def _edited(value: Any, edit: Edit, values: Sequence[Any]) -> Any:
    where, what, which = edit
    places, new = _places(value), copy.deepcopy(values[which])
    if not places:
        return new
    holder, key = places[where % len(places)]
    old, what = holder[key], what % 8
    if what == 0:
        del holder[key]
    elif what == 1 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(old))
    elif what == 1:
        holder[str(new)[:80]] = old
    elif what == 2:
        other, name = places[(where * 7 + which) % len(places)]
        holder[key] = copy.deepcopy(other[name])
    elif what == 3:
        holder[key] = [old] if which % 2 else {"a": old}
    else:
        holder[key] = new
    return value


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every holder and key in a document, the outer ones first."""
    places: list[tuple[Any, Any]] = []
    holders = [value]
    while holders and len(places) < 5000:
        holder = holders.pop(0)
        if isinstance(holder, dict | list):
            for key in holder if isinstance(holder, dict) else range(len(holder)):
                places.append((holder, key))
                holders.append(holder[key])
    return places


def texts(*examples: str, more: Sequence[str] = (), most: int = 3) -> SearchStrategy[str]:
    """The examples with parts replaced, removed, repeated, cut off or exchanged."""
    return _spliced(examples, (*TEXTS, *more, *more, *more), most)


def binary(*examples: bytes, more: Sequence[bytes] = (), most: int = 3) -> SearchStrategy[bytes]:
    """As ``texts``, of bytes."""
    return _spliced(examples, (*BYTES, *more, *more, *more), most)


def _spliced(examples: Sequence[Any], values: Sequence[Any], most: int) -> SearchStrategy[Any]:
    def make(example: Any, changes: list[Edit]) -> Any:
        for where, what, which in changes:
            example = _splice(example, where, what, values[which])
        return example

    return st.builds(make, st.sampled_from(tuple(examples)), edits(len(values), most))


def _splice(text: Any, where: int, what: int, new: Any) -> Any:
    at = where % (len(text) + 1)
    size = (what // 8) % 24
    match what % 8:
        case 0 | 1:
            return text[:at] + new + text[at:]
        case 2 | 3:
            return text[:at] + new + text[at + size :]
        case 4:
            return text[:at] + text[at + size :]
        case 5:
            return text[:at]
        case 6:
            return text[:at] + text[at : at + size] * 50 + text[at + size :]
        case _:
            other = (where * 31 + what) % (len(text) + 1)
            return text[:at] + text[other : other + size] + text[at:]


def json_bytes(*examples: Any, more: Sequence[Any] = ()) -> SearchStrategy[bytes]:
    """Documents as UTF-8, every other one damaged as text and as bytes."""
    return _written(examples, more, lambda text: text.encode("utf-8", "surrogatepass"), BYTES)


def json_texts(*examples: Any, more: Sequence[Any] = ()) -> SearchStrategy[str]:
    """Documents as text, every other one damaged as text."""
    return _written(examples, more, str, TEXTS)


def _written(
    examples: Sequence[Any],
    more: Sequence[Any],
    encode: Callable[[str], Any],
    values: Sequence[Any],
) -> SearchStrategy[Any]:
    def make(document: Any, form: int, changes: list[Edit]) -> Any:
        written = encode(
            json.dumps(document, ensure_ascii=bool(form & 1), indent=2 if form & 2 else None)
        )
        for where, what, which in changes if form & 4 else ():
            written = _splice(written, where, what, values[which])
        return written

    return st.builds(make, documents(*examples, more=more), numbers, edits(len(values), 2))


def variables(
    *examples: dict[str, str], more: Sequence[str] = ()
) -> SearchStrategy[dict[str, str]]:
    """Environments: names of the examples, with values damaged as text."""
    names = sorted({name for example in examples for name in example})
    words = sorted({value for example in examples for value in example.values()})
    changed = st.dictionaries(st.sampled_from(names), texts(*words, more=more, most=2), max_size=3)
    return st.builds(
        lambda example, changes, gone: {
            name: value for name, value in (example | changes).items() if name != gone
        },
        st.sampled_from(examples),
        changed,
        st.none() | st.sampled_from(names),
    )


def encoded(document: Any) -> bytes:
    """The document as JSON."""
    return json.dumps(document).encode()


def damaged(*examples: Any) -> SearchStrategy[Any]:
    """Inputs like the examples, by their type: JSON as a document, then as text; other text and
    bytes by their parts; of tuples and lists of text each part."""
    values = [example for example in examples if example is not None]
    if not values:
        return st.none()
    if len(values) < len(examples):
        return st.none() | damaged(*values)
    if isinstance(values[0], str | bytes):
        is_text = isinstance(values[0], str)
        parts: SearchStrategy[Any] = texts(*values) if is_text else binary(*values)
        read = [document for document in map(_json, values) if document is not None]
        written: Any = json_texts if is_text else json_bytes
        return written(*read) | parts if read else parts
    if isinstance(values[0], tuple):
        columns = zip(*values, strict=True)
        return st.tuples(*(damaged(*column) for column in columns))
    if isinstance(values[0], list) and values[0] and isinstance(values[0][0], str | bytes):
        return st.lists(damaged(*(part for example in values for part in example)), max_size=8)
    if all(
        isinstance(example, dict) and {*map(type, example.values())} == {str} for example in values
    ):
        return variables(*values)
    if isinstance(values[0], dict | list):
        return documents(*values)
    return st.sampled_from(values)


def _json(example: str | bytes) -> Any:
    try:
        document = json.loads(example)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict | list) else None
