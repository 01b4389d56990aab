"""The sentences of a plan's reasons, from the templates in reasons.yaml."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from peagle.catalog.documents import parse_document
from peagle.planning.plan import Reason
from peagle.planning.weights import (
    HUB_BYTES_PER_SECOND,
    LOAD_BYTES_PER_SECOND,
    MOUNT_BYTES_PER_SECOND,
)
from peagle.text import (
    format_concurrency,
    format_duration,
    format_rate,
    format_requests,
    format_size,
    format_usd,
)


@cache
def read_sentences() -> tuple[dict[str, str], dict[str, str]]:
    """The templates by code, and the parts that they share."""
    file = Path(__file__).with_name("reasons.yaml")
    document: Any = parse_document(file.read_text(encoding="utf-8"), file.name).data
    parts = document["parts"] | {
        "HUB_RATE": format_rate(HUB_BYTES_PER_SECOND),
        "LOAD_RATE": format_rate(LOAD_BYTES_PER_SECOND),
        "MOUNT_RATE": format_rate(MOUNT_BYTES_PER_SECOND),
    }
    return document["sentences"], parts


def reason_text(reason: Reason) -> str:
    """The sentence of a reason; its code where a later version made the plan."""
    sentence = read_sentences()[0].get(reason.code)
    return reason.code if sentence is None else _SENTENCE.vformat(sentence, (), reason.values)


_FORMATS: Mapping[str, Callable[[Any], str]] = {
    "by_k": lambda speeds: "".join(f", {speed:,.0f} with K={k}" for k, speed in speeds.items()),
    "concurrency": format_concurrency,
    "duration": format_duration,
    "for_all": lambda count: f" for {count}" if count > 1 else "",
    "gpus": lambda count: f"{count} GPU{'' if count == 1 else 's'}",
    "requests": format_requests,
    "size": format_size,
    "usd": format_usd,
}


class _Sentence(string.Formatter):
    """A template, whose parts are templates too; an unknown value is empty."""

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        part = read_sentences()[1].get(str(key))
        return kwargs.get(str(key)) if part is None else self.vformat(part, args, kwargs)

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.startswith("?"):
            text, _, otherwise = format_spec[1:].partition("|")
            return text if value else otherwise
        if value is None:
            return ""
        form = _FORMATS.get(format_spec)
        return form(value) if form else format(value, format_spec)


_SENTENCE = _Sentence()
