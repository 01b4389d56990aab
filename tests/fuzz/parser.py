"""What is fuzzed: a function, valid inputs of it, and the errors that it promises."""

import ast
import io
import resource
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.fuzz.inputs import damaged

CORPUS = Path(__file__).parent / "corpus"
"""A folder for each parser; each file is one input that once failed, as Python writes it."""
MOST_SECONDS = 3.0
"""CPU time of an input: the tests share the machine with others."""
MOST_BYTES = 512 << 20
"""Address space that an input may add; more of it is reserved than used."""
BATCH, CHUNK = 10, 200
"""Inputs of one example of Hypothesis, whose own work for one takes longer than most parsers; and
examples of one run of it, which keeps all of a run in memory."""


@dataclass(frozen=True)
class Parser:
    """``parse`` takes one input; whatever it raises beside ``allowed`` is a failure. ``examples``
    are valid inputs, of which every run takes each first; then they are damaged, or ``inputs`` are
    taken. ``prepare`` is called before each input, and is not measured."""

    name: str
    parse: Callable[[Any], object]
    examples: Sequence[Any]
    allowed: type[Exception] | tuple[type[Exception], ...] = ()
    inputs: SearchStrategy[Any] | None = None
    prepare: Callable[[], object] = lambda: None

    @cached_property
    def strategy(self) -> SearchStrategy[Any]:
        return damaged(*self.examples) if self.inputs is None else self.inputs


class TooSlow(BaseException):
    """The timer's exception; no parser catches it."""


def check(parser: Parser, value: Any) -> None:
    """Run one input. Raises AssertionError, with the input, for an error that the parser does not
    promise, and beyond the limits."""
    parser.prepare()
    try:
        with _limited():
            parser.parse(value)
        return
    except parser.allowed:
        return
    except TooSlow:
        failure = f"still runs after {MOST_SECONDS:g} s"
    except MemoryError:
        failure = f"needs more than {MOST_BYTES >> 20} MB"
    except Exception as error:
        failure = "".join(traceback.format_exception(error, limit=-3))
    raise AssertionError(f"{parser.name}: {failure}\ninput: {ascii(value)[:2000]}")


@contextmanager
def _limited() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    before = signal.signal(signal.SIGPROF, _stop)
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, hard))
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGPROF, before)


def _stop(number: int, frame: FrameType | None) -> None:
    raise TooSlow


def run(parser: Parser, inputs: int) -> None:
    """The examples, the corpus, then so many new inputs, the same in every run. Raises
    AssertionError."""
    for value in parser.examples:
        check(parser, value)
    for path in sorted((CORPUS / parser.name).glob("*.txt")):
        check(parser, ast.literal_eval(path.read_text(encoding="utf-8")))
    examples = -(-inputs // BATCH)
    for number in range(0, examples, CHUNK):

        @seed(number)
        @settings(
            max_examples=min(CHUNK, examples - number), deadline=None, database=None,
            suppress_health_check=list(HealthCheck), verbosity=Verbosity.quiet,
            phases=[Phase.generate],
        )  # fmt: skip
        @given(st.tuples(*[parser.strategy] * BATCH))
        def each(values: Sequence[Any]) -> None:
            for value in values:
                check(parser, value)

        each()


def quietly(function: Callable[[Any], object]) -> Callable[[Any], object]:
    """The function, without what it prints."""

    def run_quietly(value: Any) -> object:
        with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
            return function(value)

    return run_quietly
