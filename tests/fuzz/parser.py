"""What is fuzzed: a function, its inputs, and the errors that it promises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis.strategies import SearchStrategy


@dataclass(frozen=True)
class Parser:
    """``parse`` takes one input; whatever it raises beside ``allowed`` is a failure. ``examples``
    are valid inputs, of which every run takes each first. ``prepare`` is called before each input,
    and is not measured."""

    name: str
    parse: Callable[[Any], object]
    inputs: SearchStrategy[Any]
    allowed: tuple[type[Exception], ...]
    examples: Sequence[Any] = ()
    prepare: Callable[[], object] = lambda: None
