"""Names of vLLM's speculation methods."""

from __future__ import annotations

_TITLES = {"eagle3": "EAGLE-3", "mtp": "MTP", "dflash": "DFlash", "ngram": "n-gram"}


def method_id(method: str, parallel_drafting: bool) -> str:
    """``p-eagle`` for EAGLE-3 with parallel drafting, else vLLM's name of the method."""
    return "p-eagle" if parallel_drafting and method == "eagle3" else method


def method_title(method: str, parallel_drafting: bool) -> str:
    """``P-EAGLE``, ``EAGLE-3``; vLLM's name of a method without a title."""
    if method_id(method, parallel_drafting) == "p-eagle":
        return "P-EAGLE"
    return _TITLES.get(method, method)
