"""Measure one server at one or several loads: ``peagle bench NAME``."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from peagle import __version__
from peagle.bench.measure import BenchTarget, LoadProgress, measure_of
from peagle.bench.models import BenchHost, BenchLoad, BenchResult, BenchRow, utc_now
from peagle.bench.saturation import with_saturation
from peagle.bench.sender import LoadSender
from peagle.bench.workloads import find_workload, make_load
from peagle.errors import PeagleError

INTERRUPTED = "interrupted"
"""``BenchResult.incomplete`` after Ctrl-C."""

Say = Callable[[str, int, int], object]
"""Called with the load in words, and how many requests of how many have ended."""


def bench(
    target: BenchTarget,
    loads: Sequence[BenchLoad],
    sender: LoadSender,
    command: Sequence[str] = (),
    say: Say = lambda load, ended, total: None,
) -> BenchResult:
    """Measure the loads one after another.

    An error or an interrupt after the first row ends the measurement and keeps the rows, with
    ``incomplete``. Raises what ``probe`` and ``measure_load`` raise before there is one.
    """
    started = utc_now()
    measure = measure_of(target, sender)
    rows: list[BenchRow] = []
    ended = ""
    for load in loads:
        try:
            rows.append(measure(load, _named(load, say)))
        except (PeagleError, KeyboardInterrupt) as error:
            if not rows:
                raise
            ended = error.message if isinstance(error, PeagleError) else INTERRUPTED
        if ended := ended or rows[-1].incomplete:
            break
    return BenchResult(
        server=target.facts,
        started=started,
        toolkit=__version__,
        sender=sender.identity,
        host=this_host(),
        command=tuple(command),
        rows=with_saturation(rows),
        usd_per_hour=target.usd_per_hour,
        price_source=target.price_source,
        incomplete=ended,
    )


def load_text(load: BenchLoad) -> str:
    """``short-prompt, 8 requests at a time``."""
    plural = "s" if load.concurrency != 1 else ""
    return f"{load.workload.name}, {load.concurrency} request{plural} at a time"


def _named(load: BenchLoad, say: Say) -> LoadProgress:
    return lambda ended, total: say(load_text(load), ended, total)


def this_host() -> BenchHost:
    """This machine, from where the load comes."""
    return BenchHost(platform.platform(), platform.python_version(), os.cpu_count() or 0, _cpu())


def _cpu() -> str:
    """The model of the CPU; of a system without ``/proc``, its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.machine()
    model = next((line for line in lines if line.startswith("model name")), "")
    return model.partition(":")[2].strip() or platform.machine()


def bench_loads(
    workload: str,
    concurrencies: Sequence[int],
    repetitions: int = 3,
    requests: int | None = None,
    prompt_tokens: int | None = None,
    output_tokens: int | None = None,
) -> tuple[BenchLoad, ...]:
    """The loads of a workload, by its name or its file, at these concurrencies. Raises UserError
    as ``find_workload`` does."""
    found = find_workload(workload, prompt_tokens, output_tokens)
    return tuple(
        make_load(found, concurrency, repetitions, requests) for concurrency in concurrencies
    )


def with_price(target: BenchTarget, usd_per_hour: float) -> BenchTarget:
    """The target at the user's own price."""
    return replace(target, usd_per_hour=usd_per_hour, price_source="as given")
