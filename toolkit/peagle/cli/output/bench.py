"""The output of ``peagle bench``, also of a sweep."""

from __future__ import annotations

from collections.abc import Sequence

from peagle.bench.models import (
    BenchedServer,
    BenchResult,
    BenchRow,
    BenchWorkload,
    Interval,
    Times,
    highest,
)
from peagle.cli.output.console import (
    print_line,
    print_status,
    print_table,
)
from peagle.text import format_usd, sanitize

_HEADINGS = (
    "REQUESTS", "TOKENS/S", "95 % INTERVAL", "TTFT P50", "P90", "P99", "ITL P50", "P90 ", "P99 ",
    "TPOT", "ACCEPTANCE", "$/1M",
)  # fmt: skip
BUSY_SHARE = 0.8
"""A sender that uses so much of one CPU, or a machine that uses so much of all, has no headroom."""

_NONE = "-"


def print_result(result: BenchResult) -> None:
    """The server, the rows of each workload as a table, and what to know about them."""
    print_line(f"{sanitize(result.server.name)}: {_server(result.server)}")
    workloads = list(dict.fromkeys(row.load.workload for row in result.rows))
    for workload in workloads:
        rows = [row for row in result.rows if row.load.workload == workload]
        print_line(_workload(workload, rows))
        print_table(_HEADINGS, map(_cells, rows), right=_HEADINGS)
        for row in rows:
            _print_notes(row)
    _print_footer(result)


def _server(server: BenchedServer) -> str:
    parts = [server.pair or server.model]
    if server.instance_type:
        count = f"{server.instance_count} x " if (server.instance_count or 1) > 1 else ""
        parts.append(f"{count}{server.instance_type}")
    if server.gpu:
        parts.append(f"{server.gpu_count or 1} x {server.gpu}")
    if server.vllm:
        parts.append(f"vLLM {server.vllm}")
    if server.where == "sandbox":
        stand_in = f", {server.stand_in} answers" if server.stand_in else ""
        parts.append(f"in the sandbox: speeds are of this machine's CPU{stand_in}")
    return sanitize(", ".join(parts))


def _workload(workload: BenchWorkload, rows: Sequence[BenchRow]) -> str:
    prompt = sum(row.prompt_tokens for row in rows) / len(rows)
    answer = sum(row.output_tokens for row in rows) / len(rows)
    source = "prompts of the file" if workload.prompts else "random words"
    length = "" if workload.fixed_length else ", of their natural length"
    settings = ", ".join(dict.fromkeys(row.setting.text for row in rows))
    repetitions = max(row.load.repetitions for row in rows)
    return (
        f"{sanitize(workload.name)}, {settings}: prompts of {prompt:.0f} tokens ({source}), "
        f"answers of {answer:.0f}{length}; measured, {repetitions} repetitions"
    )


def _cells(row: BenchRow) -> tuple[str, ...]:
    acceptance = f"{row.acceptance.length:.2f}" if row.acceptance else "-"
    cost = row.usd_per_million_tokens
    return (
        str(row.load.concurrency),
        f"{row.tokens_per_second.value:,.1f}",
        interval_text(row.tokens_per_second),
        *_milliseconds(row.ttft),
        *_milliseconds(row.itl),
        _milliseconds(row.tpot)[0],
        acceptance,
        format_usd(cost) if cost is not None else "-",
    )


def interval_text(interval: Interval) -> str:
    """``140.2 to 165.1``; nothing of a single repetition."""
    if interval.low == interval.high:
        return "-"
    return f"{interval.low:,.1f} to {interval.high:,.1f}"


def _milliseconds(times: Times | None) -> tuple[str, str, str]:
    """Median, 90th and 99th percentile."""
    if times is None:
        return "-", "-", "-"
    return tuple(f"{1e3 * value:,.1f}" for value in (times.p50, times.p90, times.p99))  # type: ignore[return-value]


def _print_notes(row: BenchRow) -> None:
    of = f"  {row.load.concurrency} at a time:"
    if row.acceptance:
        rates = ", ".join(f"{rate:.0%}" for rate in row.acceptance.per_position)
        basis = "" if row.acceptance.basis == "measured" else f" ({row.acceptance.basis})"
        text = "the file's prompts" if row.load.workload.prompts else "random words"
        print_line(
            f"{of} accepted by position {rates}; {row.acceptance.drafts:,} drafts on {text}{basis}"
        )
    if row.saturated:
        print_line(f"{of} saturated: {row.saturated}")
    if row.incomplete:
        print_line(f"{of} incomplete: {row.incomplete}")


def _print_footer(result: BenchResult) -> None:
    busiest = highest(row.sender_cpu_share for row in result.rows)
    machine = highest(row.machine_cpu_share for row in result.rows)
    name, version = result.sender
    print_status(
        f"Times in ms. TTFT: to the first output; ITL: between outputs; TPOT: per token after the "
        f"first. Sent by {name} {version}, whose busiest process used {share_text(busiest)} of a "
        f"CPU; this machine's CPUs were {share_text(machine)} busy."
    )
    if (busiest or 0.0) > BUSY_SHARE:
        print_status("The sender has no headroom: it, not the server, may limit these numbers.")
    elif (machine or 0.0) > BUSY_SHARE and result.server.where in ("aws", "url"):
        print_status("This machine is busy, which makes the times longer than the server's.")
    if result.usd_per_hour is not None:
        print_status(f"Price: {format_usd(result.usd_per_hour)} per hour, {result.price_source}.")


def share_text(share: float | None) -> str:
    """``15%``; of a load that was too short to tell, ``an unknown share``."""
    return "an unknown share" if share is None else f"{share:.0%}"


def print_sweep(result: BenchResult, summaries: Sequence[str]) -> None:
    """Print tokens per second by load and setting, then the summaries, one for each workload."""
    names = dict.fromkeys(row.load.workload.name for row in result.rows)
    for name in names:
        rows = [row for row in result.rows if row.load.workload.name == name]
        print_line(f"{name}: output tokens per second, with 95 % confidence interval")
        table = _table(rows)
        print_table(table[0], table[1:], right=table[0], indent=2)
    for summary in summaries:
        print_line(summary)
    if any(row.saturated for row in result.rows):
        print_line("* saturated: more requests only wait longer; the report has the reasons.")


def _table(rows: Sequence[BenchRow]) -> list[tuple[str, ...]]:
    settings = list(dict.fromkeys(row.setting for row in rows))
    loads = sorted({row.load.concurrency for row in rows})
    cells = {(row.load.concurrency, row.setting): _cell(row) for row in rows}
    return [
        ("requests", *(setting.text for setting in settings)),
        *(
            (f"{load:,}", *(cells.get((load, setting), _NONE) for setting in settings))
            for load in loads
        ),
    ]


def _cell(row: BenchRow) -> str:
    """``4,148 ±3%``; a star marks a saturated load."""
    speed = row.tokens_per_second
    digits = 0 if speed.value >= 100 else 1
    star = "*" if row.saturated else ""
    return f"{speed.value:,.{digits}f} ±{speed.spread:.0%}{star}"
