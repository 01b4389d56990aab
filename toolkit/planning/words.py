"""Numbers in words, the same in every sentence of a plan."""

from __future__ import annotations


def requests(number: float) -> str:
    """``1 request``, ``8 requests``, ``100,000 requests``, ``4.5 requests``."""
    return f"{number:,.10g} request{'' if number == 1 else 's'}"


def at_a_time(load: float) -> str:
    """``8 requests at a time``."""
    return f"{requests(load)} at a time"


def size_text(size: int) -> str:
    """``13.8 GB``, ``14 MB``."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
