"""The plots of a benchmark: speed, gain, cost and latency by load, acceptance by position. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from peagle.bench import compare
from peagle.bench.chart import Chart, Line, Point
from peagle.bench.models import BenchRow, BenchSetting
from peagle.speed.slo import Slo


class Plots:
    """The charts of one result, in which each setting always has the same style.

    ``intervals`` says what low and high of a speed are.
    """

    def __init__(self, rows: Sequence[BenchRow], intervals: str) -> None:
        speculating = [one for one in compare.settings(rows) if one.k]
        self._styles = {one: at for at, one in enumerate(speculating, 1)}
        self._intervals = intervals

    def of_workload(self, rows: Sequence[BenchRow], slo: Slo | None) -> Iterator[Chart]:
        """The charts of one workload's rows, each if it has something to show."""
        yield self.speed(rows)
        if _speeds_alone(rows) and len(compare.settings(rows)) > 1:
            yield self.gain(rows)
        if any(row.usd_per_million_tokens is not None for row in rows):
            yield self._cost(rows)
        for name in ("ttft", "itl"):
            if any(compare.known(getattr(row, name)) for row in rows):
                yield self._latency(rows, name, getattr(slo, name, None))

    def acceptance(self, curves: Sequence[tuple[BenchSetting, tuple[float, ...]]]) -> Chart:
        """The chart of acceptance by position."""
        lines = tuple(
            Line(
                setting.text,
                tuple(Point(at, 100 * rate) for at, rate in enumerate(rates, 1)),
                self._styles[setting],
            )
            for setting, rates in curves
        )
        return Chart(
            "Accepted drafts by position",
            "The share of drafts accepted at each position, for each setting.",
            "position in the draft",
            "% accepted",
            lines,
            "{:,g}".format,
            log_x=False,
        )

    def speed(self, rows: Sequence[BenchRow]) -> Chart:
        """Output tokens per second of one workload's rows, with intervals and crossovers."""
        lines = self._lines(
            rows,
            lambda row: (
                row.tokens_per_second.value,
                row.tokens_per_second.low,
                row.tokens_per_second.high,
            ),
        )
        marks = [
            (one.requests, f"speculation {one.direction} paying at {one.requests:,.0f}")
            for one in compare.crossovers(rows)
        ]
        return Chart(
            "Output tokens per second",
            "Output tokens per second of all requests together by the number of concurrent "
            f"requests, for each setting, with {self._intervals}. {compare.summary_of(rows)}",
            "concurrent requests",
            "tokens/s",
            lines,
            "{:,.10g}".format,
            log_y=True,
            marks=tuple(marks[:3]),
        )

    def gain(self, rows: Sequence[BenchRow]) -> Chart:
        """The speed of one workload's rows as a multiple of that without speculation."""
        alone = _speeds_alone(rows)
        measured = [row for row in rows if row.setting.k and row.load.concurrency in alone]

        def gain(row: BenchRow) -> tuple[float, float | None, float | None]:
            speed, base = row.tokens_per_second, alone[row.load.concurrency]
            return speed.value / base, speed.low / base, speed.high / base

        return Chart(
            "Speed against no speculation",
            "The speed of each setting as a multiple of the speed without speculation at the same "
            "load. Above the line at 1, speculation is faster.",
            "concurrent requests",
            "times",
            self._lines(measured, gain),
            "{:,g}".format,
            level=(1.0, "no speculation"),
        )

    def _cost(self, rows: Sequence[BenchRow]) -> Chart:
        priced = [row for row in rows if row.usd_per_million_tokens is not None]
        return Chart(
            "Cost of a million output tokens",
            "US dollars per million output tokens by the number of concurrent requests, for each "
            "setting.",
            "concurrent requests",
            "USD",
            self._lines(priced, lambda row: (row.usd_per_million_tokens or 0.0, None, None)),
            "{:,.10g}".format,
            log_y=True,
        )

    def _latency(self, rows: Sequence[BenchRow], name: str, limit: float | None) -> Chart:
        words = {"ttft": "Time to first output", "itl": "Time between outputs"}[name]
        measured = [row for row in rows if compare.known(getattr(row, name))]
        limited = f" The line is the objective, {limit:g} s." if limit is not None else ""
        return Chart(
            f"{words}, mean",
            f"Mean {words.lower()} by the number of concurrent requests, for each "
            f"setting.{limited}",
            "concurrent requests",
            "ms",
            self._lines(measured, lambda row: (1000 * getattr(row, name).mean, None, None)),
            "{:,g}".format,
            level=None if limit is None else (1000 * limit, "objective"),
        )

    def _lines(
        self,
        rows: Sequence[BenchRow],
        value: Callable[[BenchRow], tuple[float, float | None, float | None]],
    ) -> tuple[Line, ...]:
        """One line per setting; rows without a speed are left out."""
        measured = compare.usable(rows)
        return tuple(
            Line(
                setting.text,
                tuple(
                    Point(row.load.concurrency, *value(row))
                    for row in sorted(measured, key=lambda row: row.load.concurrency)
                    if row.setting == setting
                ),
                self._styles.get(setting, 0),
            )
            for setting in compare.settings(measured)
        )


def _speeds_alone(rows: Sequence[BenchRow]) -> dict[int, float]:
    """Load -> output tokens per second without speculation."""
    return {
        row.load.concurrency: row.tokens_per_second.value
        for row in compare.usable(rows)
        if not row.setting.k
    }
