"""What is fuzzed: a function, valid inputs of it, and the errors that it promises."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hypothesis.strategies import SearchStrategy

from tests.fuzz.inputs import damaged


@dataclass(frozen=True)
class Parser:
    """``parse`` takes one input; whatever it raises beside ``allowed`` is a failure. ``examples``
    are valid inputs, of which every run takes each first; then they are damaged (``typed`` and
    ``kept`` as in ``documents``), or ``inputs`` are taken. ``prepare`` is called before each input,
    and is not measured."""

    name: str
    parse: Callable[[Any], object]
    examples: Sequence[Any]
    allowed: type[Exception] | tuple[type[Exception], ...] = ()
    inputs: SearchStrategy[Any] | None = None
    prepare: Callable[[], object] = lambda: None
    typed: bool = False
    kept: Collection[str] = ()

    @cached_property
    def strategy(self) -> SearchStrategy[Any]:
        if self.inputs is not None:
            return self.inputs
        return damaged(*self.examples, typed=self.typed, kept=self.kept)
