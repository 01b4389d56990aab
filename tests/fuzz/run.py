"""The long run of one parser: counts, worst time and memory, and the failures as files."""

from __future__ import annotations

import ast
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.fuzz.measure import Measured, measure
from tests.fuzz.parser import Parser

CORPUS = Path(__file__).parent / "corpus"
"""A folder for each parser; each file is one input, as Python writes it."""
CHUNK = 2000
"""Inputs of one run of Hypothesis, which keeps all of a run in memory."""
BATCH = 10
"""Inputs of one example of Hypothesis, whose own work for an example takes longer than most parsers
for an input."""
QUIET = settings(
    deadline=None, database=None, suppress_health_check=list(HealthCheck), verbosity=Verbosity.quiet
)


@dataclass
class Counts:
    """What became of the inputs of a parser."""

    inputs: int = 0
    refused: int = 0
    worst_seconds: float = 0.0
    worst_bytes: int = 0
    failures: dict[str, Any] = field(default_factory=dict)
    """Kind of failure -> the shortest input that ended so."""

    seconds: float = 0.0

    def add(self, found: Measured, value: Any) -> None:
        self.inputs += 1
        self.refused += found.refused
        self.worst_seconds = max(self.worst_seconds, found.seconds)
        self.worst_bytes = max(self.worst_bytes, found.peak_bytes)
        if found.failure:
            kept = self.failures.get(found.kind)
            if kept is None or len(repr(value)) < len(repr(kept)):
                self.failures[found.kind] = value


def corpus(parser: Parser) -> Iterator[Any]:
    """The inputs that once failed."""
    for path in sorted((CORPUS / parser.name).glob("*.txt")):
        yield ast.literal_eval(path.read_text(encoding="utf-8"))


def save(parser: Parser, value: Any) -> Path | str:
    """Write an input to the corpus, or say that only Python's plain data can be written."""
    text = ascii(value)
    try:
        ast.literal_eval(text)
    except ValueError:
        return "not kept: add the input to the parser's examples"
    path = CORPUS / parser.name / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="ascii")
    return path


def run(
    parser: Parser,
    inputs: int,
    seconds: float,
    first_seed: int = 0,
    progress: Callable[[Counts], object] = lambda counts: None,
) -> Counts:
    """So many inputs, or those of so many seconds: the examples, the corpus, then new ones."""
    counts, began = Counts(), time.monotonic()
    for value in (*parser.examples, *corpus(parser)):
        counts.add(measure(parser, value), value)
    chunk = first_seed
    while counts.inputs < inputs and time.monotonic() - began < seconds:
        _chunk(parser, min(CHUNK, inputs - counts.inputs), chunk, counts)
        counts.seconds = time.monotonic() - began
        progress(counts)
        chunk += 1
    return counts


def _chunk(parser: Parser, inputs: int, number: int, counts: Counts) -> None:
    @seed(number)
    @settings(QUIET, max_examples=-(-inputs // BATCH), phases=[Phase.generate])
    @given(batches(parser))
    def each(values: Sequence[Any]) -> None:
        for value in values:
            counts.add(measure(parser, value), value)

    each()


def batches(parser: Parser) -> SearchStrategy[Sequence[Any]]:
    """So many inputs at once."""
    return st.tuples(*[parser.strategy] * BATCH)
