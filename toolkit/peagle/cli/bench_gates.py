"""The options of ``peagle bench NAME`` that make it a gate of a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from peagle.bench.gates import BenchGates
from peagle.cli.options import USD, Decimal, objective

_ABOVE_ZERO = Decimal("a number above 0, such as 500", min=0, min_open=True)


def gate_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; the command receives ``gates``."""

    @click.option(
        "--slo",
        metavar="TIMES",
        callback=objective,
        help="Exit with 3 if a mean time is longer: ttft=0.5,itl=0.02, in seconds.",
    )
    @click.option(
        "--min-tokens-per-second",
        type=_ABOVE_ZERO,
        metavar="N",
        help="Exit with 3 if a load has fewer output tokens per second.",
    )
    @click.option(
        "--max-usd-per-million-tokens",
        type=USD,
        metavar="USD",
        help="Exit with 3 if a million output tokens cost more.",
    )
    @click.option(
        "--min-acceptance-length",
        type=Decimal("an acceptance length of 1 or more, such as 2.2", min=1),
        metavar="N",
        help="Exit with 3 if fewer tokens are accepted per step.",
    )
    @wraps(command)
    def with_gates(*args: Any, **given: Any) -> Any:
        limits = {name: given.pop(name) for name in BenchGates.__dataclass_fields__}
        return command(*args, gates=BenchGates(**limits), **given)

    return with_gates
