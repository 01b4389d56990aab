"""Builds HTML in which all text is escaped: only what this module made counts as markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from peagle.text import shortened

LONGEST_TEXT = 2_000
"""Characters of one piece of text; a longer one is cut."""


class Html(str):
    """Markup. Plain ``str`` is text, which ``element`` escapes."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: str) -> Html:
    """``<name ...>children</name>``. A trailing ``_`` of an attribute's name is dropped, and other
    ``_`` become ``-``: ``class_``, ``aria_label``."""
    pairs = (
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
    )
    return Html(f"<{name}{''.join(pairs)}>{joined(children)}</{name}>")


def joined(children: Iterable[str], between: str = "") -> Html:
    """The children one after the other, with ``between`` as text."""
    parts = (child if isinstance(child, Html) else escape(_short(child)) for child in children)
    return Html(escape(between).join(parts))


def _short(text: str) -> str:
    return shortened(text, LONGEST_TEXT, "…")


def table(
    caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1
) -> Html:
    """A table in a region of its own that scrolls sideways on narrow screens.

    The first ``texts`` columns are text, of which the first is the row's heading; the others are
    numbers, aligned to the right.
    """

    def cell(name: str, at: int, value: str, scope: str | None = None) -> Html:
        attributes = {"class_": "text"} if at < texts else {}
        attributes |= {"scope": scope} if scope else {}
        return element(name, value, **attributes)

    head = element("tr", *(cell("th", at, text, "col") for at, text in enumerate(headings)))
    body = [
        element(
            "tr",
            cell("th", 0, row[0], "row"),
            *(cell("td", at, row[at]) for at in range(1, len(row))),
        )
        for row in rows
    ]
    inner = element(
        "table",
        element("caption", caption),
        element("thead", head),
        element("tbody", *body),
    )
    return element("div", inner, class_="scroll", role="region", tabindex="0", aria_label=caption)


def page(title: str, style: str, body: Html) -> str:
    """A complete document that loads nothing: its policy refuses all but its own style."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    head = (
        '<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>"
    )
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{body}\n</body>\n'
        "</html>\n"
    )
