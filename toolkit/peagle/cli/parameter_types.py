"""The types of options' values: numbers, durations, choices, prices, loads and output paths."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from peagle import api
from peagle.errors import nearest
from peagle.text import parse_batch, parse_duration, parse_requests, parse_tokens, sanitize

if TYPE_CHECKING:
    from peagle.speed.slo import Slo

T = TypeVar("T")

_MOST_LOADS = 32
"""A longer list of loads is a mistake, and would take long."""

_LARGEST_LOAD = 100_000


def duration(_: click.Context, option: click.Parameter, value: str | None) -> int | None:
    """A callback: the option's value as seconds. Raises BadParameter."""
    units = "hd" if option.name == "ttl" else "smh"
    try:
        return None if value is None else parse_duration(value, units)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def objective(_: click.Context, __: click.Parameter, value: str | None) -> Slo | None:
    """A callback: the value of ``--slo``. Raises UserError."""
    return None if value is None else api.parse_slo(value)


class Parsed(click.ParamType[T]):
    """The type of options whose value is what ``parse`` makes of the text; ``name`` is click's."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        """The value. Raises BadParameter where ``parse`` raises ValueError."""
        try:
            return self._parse(str(value))
        except ValueError as error:
            return self.fail(str(error), param, ctx)


class WholeNumber(click.IntRange):
    """A whole number from ``min`` to ``max``, if there is one, with an error that says so."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number. Raises BadParameter."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            is_open = self.max is None
            limits = f"of {self.min} or more" if is_open else f"from {self.min} to {self.max}"
            wrong = f"{sanitize(value, 40)!r} is not a whole number {limits}"
            return self.fail(wrong, param, ctx)


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{sanitize(text, 40)!r} is not a whole number of 1 or more") from None


K = Parsed("integer", _integer)
"""The type of ``--k`` of a plan, whose bounds planning checks."""


class OneOf(click.Choice[str]):
    """One of several words, with an error that suggests the nearest."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """The choices, and those close to the value."""
        hint = nearest(str(value), self.choices)
        message = f"{sanitize(value, 40)!r} is not one of {', '.join(self.choices)}"
        return f"{message}: {hint}" if hint else message


class ParsedNumber(click.IntRange):
    """A whole number from 1 on, as ``parse`` reads it."""

    def __init__(self, parse: Callable[[str], int]) -> None:
        super().__init__(min=1)
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number. Raises BadParameter, with an example of what is expected."""
        try:
            return value if type(value) is int else self._parse(str(value))
        except ValueError as error:
            return self.fail(str(error), param, ctx)


TOKENS = ParsedNumber(parse_tokens)
"""The type of options that are a number of tokens, such as ``8192`` or ``8k``."""

REQUESTS = ParsedNumber(parse_requests)
"""The type of options that are a number of requests, such as ``5000``."""


BATCH = ParsedNumber(parse_batch)
"""The type of options that are the number of requests of a batch, such as ``1m``."""


_THOUSANDS = re.compile(r"[1-9][0-9]{0,2}(?:[,_][0-9]{3})+(?:\.[0-9]+)?")


class Decimal(click.FloatRange):
    """A number within the bounds of click's FloatRange. ``allowed`` says in the error what is
    allowed, with an example; ``unit`` may stand before the number."""

    def __init__(self, allowed: str, unit: str = "", **bounds: Any) -> None:
        super().__init__(**bounds)
        self._allowed, self._unit = allowed, unit

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number. Raises BadParameter."""
        plain: Any = value.strip().removeprefix(self._unit) if isinstance(value, str) else value
        if isinstance(value, str) and _THOUSANDS.fullmatch(plain):
            plain = plain.replace(",", "").replace("_", "")
        try:
            found = float(super().convert(plain, param, ctx))
        except click.BadParameter:
            found = math.nan
        if math.isfinite(found):
            return found
        return self.fail(f"{sanitize(str(value), 40)!r} is not {self._allowed}", param, ctx)


USD = Decimal("an amount in USD above 0, such as 200 or $1.50", "$", min=0, min_open=True)
"""The type of options that are a price in USD, such as ``15`` or ``$15``."""

REQUESTS_AT_A_TIME = Decimal("a number of requests above 0, such as 8", min=0, min_open=True)
"""The type of options that are a number of requests at a time, which may be broken."""


class _Loads(click.ParamType):  # type: ignore[type-arg]
    """Numbers of concurrent requests such as ``1,8,32``: ascending, each once."""

    name = "text"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """The numbers. Raises BadParameter."""
        if isinstance(value, tuple):
            return value
        words = [word.strip() for word in str(value).split(",")]
        if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
            return self.fail(
                f"{sanitize(value, 40)!r} is not a list of numbers such as 1,8,32", param, ctx
            )
        loads = sorted({int(word) for word in words})
        if not 1 <= loads[0] <= loads[-1] <= _LARGEST_LOAD:
            return self.fail(f"loads are from 1 to {_LARGEST_LOAD:,} requests", param, ctx)
        if len(loads) > _MOST_LOADS:
            return self.fail(f"{len(loads)} loads are more than {_MOST_LOADS}", param, ctx)
        return tuple(loads)


LOADS = _Loads()
"""The type of options that are a list of numbers of concurrent requests."""


class OutputPath(click.Path):
    """The type of options that name a ``what`` to write: a path with a name, in UTF-8. Output in
    another encoding would name a path that does not exist."""

    def __init__(self, what: str = "file", dir_okay: bool = True) -> None:
        super().__init__(dir_okay=dir_okay, path_type=Path)
        self._what = what

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path. Raises BadParameter."""
        text = os.fspath(value)
        if not text:
            return self.fail(f"an output {self._what} needs a name", param, ctx)
        if not _is_utf8(text):
            shown = text.encode("utf-8", "backslashreplace").decode()
            return self.fail(f"{shown} is not UTF-8", param, ctx)
        return super().convert(value, param, ctx)


def _is_utf8(text: str) -> bool:
    """Whether no byte of the command line had to be escaped in ``text``."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
