"""Format and read money, durations, sizes and counts; read and hash JSON values."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from peagle_serve import json_reader
from peagle_serve.json_reader import InvalidJson

HOURS_PER_MONTH = 730
"""As in AWS's price calculator."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(?=.)" + " ?".join(rf"(?:([0-9]{{1,9}}){unit})?" for unit in "dhms"))

_COUNT = re.compile(r"((?:[0-9]{1,3}(?:[,_][0-9]{3}){1,3}|[0-9]{1,12})(?:\.[0-9]{1,3})?)([kKmM]?)")


def format_usd(usd: float, digits: int = 2) -> str:
    """``$1,519.10``, with so many decimal places."""
    return f"${usd:,.{digits}f}"


def format_unit_price(usd: float) -> str:
    """A unit price with all of its digits: ``$0.023``."""
    return f"${usd:,.10g}"


def format_price(usd_per_hour: float | None, sandbox: bool = False, month: bool = False) -> str:
    """The price per hour and day, and with ``month`` per month; in the sandbox that on AWS."""
    if usd_per_hour is None:
        text = "unknown"
    else:
        text = f"{format_usd(usd_per_hour)} per hour, {format_usd(usd_per_hour * 24)} per day"
        text += f", {format_usd(usd_per_hour * HOURS_PER_MONTH)} per month" if month else ""
    return f"{text} on AWS (free in the sandbox)" if sandbox else text


def usd_per_million(usd_per_hour: float | None, tokens_per_second: float | None) -> float | None:
    """The USD per million tokens, unrounded; ``None`` without a price or a speed."""
    if usd_per_hour is None or not tokens_per_second or tokens_per_second < 0:
        return None
    return usd_per_hour / 3600 / tokens_per_second * 1e6


def parse_duration(text: str) -> int:
    """The seconds of a duration such as ``90s``, ``1h30m`` or ``2d``, larger units first. Raises
    ValueError."""
    match = _DURATION.fullmatch(text.strip())
    counts = dict(zip("dhms", match.groups(), strict=True)) if match else {}
    if not any(counts.values()):
        raise ValueError(f"{sanitize(text, 40)!r} is not a duration such as 90s, 10m, 1h30m or 2d")
    return sum(int(count) * _UNITS[unit] for unit, count in counts.items() if count)


def parse_share(text: str) -> float:
    """A share such as ``10%`` or ``0.1``, from 0.1 % to 99.9 %. Raises ValueError."""
    match = re.fullmatch(r"(\d{0,3}(?:\.\d{1,6})?)(%?)", text.strip())
    number = float(match[1] or 0) if match and match[1] != "." else 0.0
    share = round(number / 100 if match and match[2] else number, 6)
    if not 0.001 <= share <= 0.999:
        raise ValueError("write a share between 0.1% and 99.9%, such as 10%")
    return share


def parse_tokens(text: str) -> int:
    """A number of tokens: ``8192`` or ``8k``, where ``k`` is 1,024. Raises ValueError."""
    return _parse_count(text, {"": 1, "k": 1024, "m": 1024**2}, "tokens such as 8192 or 8k")


def parse_requests(text: str) -> int:
    """A number of requests: ``5000`` or ``5,000``. Raises ValueError."""
    return _parse_count(text, {"": 1}, "requests such as 8 or 5000")


def parse_batch(text: str) -> int:
    """The requests of a batch: ``50k`` or ``1.5m``, where ``k`` is 1,000. Raises ValueError."""
    factors = {"": 1, "k": 1000, "m": 10**6}
    return _parse_count(text, factors, "requests such as 50k or 1m", most=10**12)


def _parse_count(text: str, factors: Mapping[str, int], what: str, most: float = math.inf) -> int:
    match = _COUNT.fullmatch(text.strip())
    factor = factors.get(match[2].lower(), 0) if match else 0
    count = Fraction(match[1].replace(",", "").replace("_", "")) * factor if match else 0
    if not 1 <= count <= most or count != int(count):
        raise ValueError(f"{sanitize(text, 40)!r} is not a number of {what}")
    return int(count)


def format_duration(seconds: float) -> str:
    """``75`` -> ``1m 15s``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {rest:02d}s" if minutes else f"{rest}s"


def exact_duration(seconds: int) -> str:
    """A duration for ``parse_duration`` of exactly this length, as users write it: ``2h``."""
    if seconds % 3600 == 0:
        return f"{seconds // 3600}h"
    return f"{seconds}s" if seconds % 60 else f"{seconds // 60}m"


def format_decimal(number: float) -> str:
    """A number with the digits that were typed: ``0.000001``, ``0.5``, ``2``."""
    return format(Decimal(repr(number)), "f").removesuffix(".0")


def format_size(size: float) -> str:
    """``13.8 GB``, ``14 MB``, ``0.4 MB``."""
    if size >= 1e9:
        return f"{size / 1e9:,.1f} GB"
    return f"{size / 1e6:.0f} MB" if size >= 1e7 else f"{size / 1e6:.1f} MB"


def format_rate(bytes_per_second: float) -> str:
    """``50 MB/s``."""
    return f"{bytes_per_second / 1e6:.0f} MB/s"


def format_requests(number: float) -> str:
    """``1 request``, ``8 requests``, ``100,000 requests``, ``4.5 requests``."""
    return f"{number:,.10g} request{'' if number == 1 else 's'}"


def join_with_or(names: Sequence[str]) -> str:
    """``a``, ``a or b``, ``a, b or c``."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def basis_text(basis: str, engines: int, each: str = "instance") -> str:
    """``" measured"``, or ``", 60 times one measured instance"``: ``each`` has an engine."""
    return f" {basis}" if engines == 1 else f", {engines} times one {basis} {each}"


def bounds_text(minimum: int, maximum: int, target: float | None, copies: bool = False) -> str:
    """``1 to 4 instances, target 8 requests at a time each``; without a target only the bounds."""
    text = f"{minimum} to {maximum} {counted(maximum, copies)}"
    return text if target is None else f"{text}, target {format_requests(target)} at a time each"


def counted(count: int, copies: bool) -> str:
    """What scaling counts, in the right number: ``copy``, ``instances``."""
    if copies:
        return "copy" if count == 1 else "copies"
    return f"instance{'' if count == 1 else 's'}"


def k_text(k: int | None) -> str:
    """``K=7``; without a K, ``no speculation``."""
    return f"K={k}" if k else "no speculation"


def format_concurrency(requests: float) -> str:
    """``8 requests at a time``."""
    return f"{format_requests(requests)} at a time"


def sanitize(text: object, longest: int | None = None) -> str:
    """``text`` without control characters, cut after ``longest`` characters."""
    return "".join(c for c in str(text) if c.isprintable())[:longest]


def shortened(text: str, longest: int) -> str:
    """``text``, or as much of it as fits into ``longest`` characters with an ellipsis."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def json_digest(document: Any) -> str:
    """SHA-256 of a JSON document, in hex, independent of the order of keys and of white space."""
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def plain(result: Any) -> Any:
    """A result as JSON has it: what ``--json`` prints, files hold and ``json.dumps`` takes. The
    fields of models and data classes are its keys; an error gives its own ``document()``."""
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(result, fallback=lambda error: error.document())


def json_object(text: Any) -> dict[str, Any]:
    """The object in a JSON text; empty for anything else."""
    try:
        document = json_reader.read(text, "it") if text else None
    except (InvalidJson, TypeError):
        return {}
    return document if isinstance(document, dict) else {}


def json_number(text: str) -> int | float | None:
    """The number in a text, as JSON writes it; ``None`` for anything else."""
    try:
        number = json_reader.read(text, "it")
    except InvalidJson:
        return None
    return number if type(number) in (int, float) else None
